//! A web server for a directory, as a stand-in for registries of packages.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Serves the files of a directory on port 80 of an address; for a directory its `index.html`.
#[derive(Debug)]
pub struct FileServer {
    root: TempDir,
}

impl FileServer {
    pub fn start(address: Ipv4Addr) -> Self {
        let root = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((address, 80)).unwrap();
        let path = root.path().to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let path = path.clone();
                std::thread::spawn(move || serve(&stream, &path));
            }
        });
        Self { root }
    }

    /// The directory that is served.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Writes a file below the directory.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn serve(stream: &TcpStream, root: &Path) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let request = lines.next()?.ok()?;
        loop {
            if lines.next()?.ok()?.is_empty() {
                break;
            }
        }
        let mut words = request.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let path = target.split('?').next()?.trim_start_matches('/');
        let mut file = root.join(path);
        if file.is_dir() {
            file = file.join("index.html");
        }
        let found = std::fs::read(&file).ok();
        let status = if found.is_some() {
            "200 OK"
        } else {
            "404 Not Found"
        };
        let kind = match file.extension().and_then(|it| it.to_str()) {
            Some("html") => "text/html",
            Some("json") => "application/json",
            _ => "application/octet-stream",
        };
        let body = found.unwrap_or_default();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut writer = stream;
        writer.write_all(head.as_bytes()).ok()?;
        if method != "HEAD" {
            writer.write_all(&body).ok()?;
        }
    }
}
