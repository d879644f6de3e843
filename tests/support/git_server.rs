//! A git host with TLS: `git http-backend` behind a small web server, with a certificate of an authority of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

/// What the server was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRequest {
    pub method: String,
    /// With the query.
    pub path: String,
    /// User and password.
    pub login: Option<String>,
    pub encoding: Option<String>,
    /// The version of git's protocol that the client asks for.
    pub protocol: Option<String>,
    pub body_bytes: usize,
}

/// A git host. Paths that start with `/moved/` lead to another host, and those that start with `/slow/` are never answered.
#[derive(Debug)]
pub struct GitServer {
    directory: TempDir,
    requests: Arc<Mutex<Vec<GitRequest>>>,
}

struct Host {
    root: PathBuf,
    /// The user and password that it accepts; none if it asks for none.
    login: Option<String>,
    moved_to: String,
    requests: Arc<Mutex<Vec<GitRequest>>>,
}

impl GitServer {
    /// On port 443 of an address.
    pub fn start(address: Ipv4Addr, name: &str, login: Option<&str>, moved_to: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // A server of another user reads the certificate.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), readable).unwrap();
        make_certificates(directory.path(), name);
        let root = directory.path().join("repositories");
        std::fs::create_dir(&root).unwrap();
        let server = Self {
            directory,
            requests: Arc::default(),
        };
        let host = Arc::new(Host {
            root,
            login: login.map(str::to_owned),
            moved_to: moved_to.to_owned(),
            requests: server.requests.clone(),
        });
        let config = tls_config(server.directory.path());
        let listener = TcpListener::bind((address, 443)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (host, config) = (host.clone(), config.clone());
                std::thread::spawn(move || host.serve(stream, config));
            }
        });
        server
    }

    /// The certificate of the authority.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    pub fn requests(&self) -> Vec<GitRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// A repository with one commit on `main`, and some branches with commits of their own.
    pub fn add_repository(&self, path: &str, branches: usize) {
        let repository = self.repository(path);
        std::fs::create_dir_all(&repository).unwrap();
        self.git(path, &["init", "-q", "--bare", "-b", "main"]);
        self.git(path, &["config", "http.receivepack", "true"]);
        self.git(path, &["config", "receive.advertisePushOptions", "true"]);
        let mut input = String::new();
        let commit = |name: &str, text: &str| {
            let length = text.len();
            format!(
                "commit refs/heads/{name}\ncommitter t <t@t.test> 1700000000 +0000\ndata 1\nx\n\
                 M 100644 inline file\ndata {length}\n{text}\n"
            )
        };
        input += &commit("main", "from the forge\n");
        for number in 0..branches {
            input += &commit(&format!("b{number}"), &format!("branch {number}\n"));
        }
        let mut import = Command::new("git")
            .args(["fast-import", "--quiet"])
            .current_dir(&repository)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = import.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        assert!(import.wait().unwrap().success());
    }

    fn repository(&self, path: &str) -> PathBuf {
        self.directory.path().join("repositories").join(path)
    }

    /// Runs git in a repository; its output.
    pub fn git(&self, path: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(self.repository(path));
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    /// The branches of a repository with their commits, in lines.
    pub fn branches(&self, path: &str) -> String {
        let format = "--format=%(refname) %(objectname)";
        self.git(path, &["for-each-ref", format])
    }
}

impl Host {
    fn serve(&self, stream: TcpStream, config: Arc<ServerConfig>) -> Option<()> {
        let connection = ServerConnection::new(config).ok()?;
        let mut stream = BufReader::new(StreamOwned::new(connection, stream));
        loop {
            let (head, body) = read_request(&mut stream)?;
            let reply = self.reply(&head, &body);
            let writer = stream.get_mut();
            writer.write_all(&reply).ok()?;
            writer.flush().ok()?;
        }
    }

    fn reply(&self, head: &[String], body: &[u8]) -> Vec<u8> {
        let mut words = head[0].split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default().to_owned();
        let login = header(head, "authorization").map(|value| {
            let encoded = value.trim_start_matches("Basic ");
            let decoded = BASE64_STANDARD.decode(encoded);
            decoded.map_or(value.clone(), |it| {
                String::from_utf8_lossy(&it).into_owned()
            })
        });
        let encoding = header(head, "content-encoding");
        let is_known = self.login.is_none() || login == self.login;
        self.requests.lock().unwrap().push(GitRequest {
            method: method.clone(),
            path: path.clone(),
            login,
            encoding: encoding.clone(),
            protocol: header(head, "git-protocol"),
            body_bytes: body.len(),
        });
        let reply = |status: &str, more: &str, body: &[u8]| {
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\n\r\n");
            [head.as_bytes(), body].concat()
        };
        while path.starts_with("/slow/") {
            std::thread::park();
        }
        if path.starts_with("/moved/") {
            let to = format!("Location: {}{path}\r\n", self.moved_to);
            return reply("302 Found", &to, b"");
        }
        if !is_known {
            let more = "WWW-Authenticate: Basic realm=\"git\"\r\n";
            return reply("401 Unauthorized", more, b"");
        }
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let mut backend = Command::new("git");
        backend
            .arg("http-backend")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs([("GIT_HTTP_EXPORT_ALL", "1"), ("REMOTE_USER", "t")])
            .envs([
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_CONFIG_NOSYSTEM", "1"),
            ])
            .env("GIT_PROJECT_ROOT", &self.root)
            .envs([("PATH_INFO", path), ("QUERY_STRING", query)])
            .env("REQUEST_METHOD", method)
            .env(
                "CONTENT_TYPE",
                header(head, "content-type").unwrap_or_default(),
            )
            .env("CONTENT_LENGTH", body.len().to_string())
            .env(
                "GIT_PROTOCOL",
                header(head, "git-protocol").unwrap_or_default(),
            )
            .env("HTTP_CONTENT_ENCODING", encoding.unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = backend.spawn().unwrap();
        let (mut stdin, input) = (child.stdin.take().unwrap(), body.to_vec());
        let writing = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap().stdout;
        let _ = writing.join();
        let end = output.windows(4).position(|part| part == b"\r\n\r\n");
        let (fields, content) = output.split_at(end.unwrap() + 4);
        let fields = String::from_utf8_lossy(fields).into_owned();
        let mut status = "200 OK".to_owned();
        let mut kept = String::new();
        for line in fields.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix("Status: ") {
                Some(given) => status = given.to_owned(),
                None => kept += &format!("{line}\r\n"),
            }
        }
        reply(&status, &kept, content)
    }
}

/// The lines of a head, and a body that it announces.
fn read_request(stream: &mut impl BufRead) -> Option<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    head.first()?;
    let mut body = Vec::new();
    if header(&head, "transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&read_line(stream)?, 16).ok()?;
            let at = body.len();
            body.resize(at + size, 0);
            stream.read_exact(&mut body[at..]).ok()?;
            read_line(stream)?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = header(&head, "content-length") {
        body.resize(length.parse().ok()?, 0);
        stream.read_exact(&mut body).ok()?;
    }
    Some((head, body))
}

fn read_line(stream: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}

fn header(head: &[String], name: &str) -> Option<String> {
    let mut fields = head.iter().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(own, _)| own.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim().to_owned())
}

/// Makes an authority, `ca.pem`, and a certificate of it for a name, `cert.pem`.
fn make_certificates(directory: &Path, name: &str) {
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(arguments).current_dir(directory);
        let ended = command.stdin(Stdio::null()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    };
    let key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let own = [
        "req",
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=authority",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
    ];
    openssl(&[&own[..], &key].concat());
    let subject = format!("/CN={name}");
    let request = [
        "req",
        "-new",
        "-subj",
        &subject,
        "-keyout",
        "key.pem",
        "-out",
        "request.pem",
    ];
    openssl(&[&request[..], &key].concat());
    let extensions = format!("subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n");
    std::fs::write(directory.join("extensions"), extensions).unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        "request.pem",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "extensions",
        "-out",
        "cert.pem",
    ]);
}

fn tls_config(directory: &Path) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    Arc::new(config)
}
