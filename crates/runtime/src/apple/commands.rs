//! The commands of `container` and their arguments, as pure functions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use oubliette_sandbox::CONTAINER_CAPABILITIES;

use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
use crate::{ContainerSpec, Network, Program, Result, RuntimeError};

/// Variables with this prefix may hold secrets. They are passed through the environment of the
/// command, because other users of the machine can read its arguments.
const SECRET_ENV_PREFIX: &str = "OUBLIETTE_";

/// A command to run: its arguments, and variables to add to its environment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Invocation {
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(String, String)>,
}

impl Invocation {
    fn new<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            variables: Vec::new(),
        }
    }

    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.arguments.push(name.into());
        self.arguments.push(value.into());
    }
}

pub(super) fn version() -> Invocation {
    Invocation::new(["--version"])
}

pub(super) fn status() -> Invocation {
    Invocation::new(["system", "status"])
}

pub(super) fn create(
    spec: &ContainerSpec,
    image: &str,
    names: &DataDirNames,
    cpus: u64,
) -> Result<Invocation> {
    let mut create = Invocation::new(["create"]);
    create.option("--name", names.container_name(&spec.id));
    for (name, value) in [
        (DATA_DIR_LABEL, names.hash()),
        (CONTAINER_LABEL, spec.id.as_str()),
        (PROJECT_LABEL, &spec.project),
    ] {
        create.option("--label", format!("{name}={value}"));
    }
    create.option("--user", "0:0");
    create.option("--workdir", "/");
    create.option("--network", network(spec.network)?);
    create.option("--cap-drop", "ALL");
    for capability in CONTAINER_CAPABILITIES {
        create.option("--cap-add", capability.name);
    }
    if let Some(bytes) = spec.limits.memory_bytes {
        // Rounded up to whole mebibytes, so that the limit is never below the requested one.
        create.option("--memory", format!("{}M", bytes.div_ceil(1 << 20).max(1)));
    }
    if let Some(requested) = spec.limits.cpus.filter(|requested| requested.is_finite()) {
        // A virtual machine has whole processors, at most as many as the host.
        let whole = (requested.ceil().max(1.0) as u64).min(cpus.max(1));
        create.option("--cpus", whole.to_string());
    }
    for mount in &spec.mounts {
        create.option(
            "--mount",
            bind(&mount.host, &mount.inside, mount.read_only)?,
        );
    }
    let init = &spec.init;
    create.option("--mount", bind(&init.binary, &init.inside, true)?);
    for (name, value) in &init.env {
        if name.starts_with(SECRET_ENV_PREFIX) {
            create.option("--env", name);
            create.variables.push((name.clone(), value.clone()));
        } else {
            create.option("--env", format!("{name}={value}"));
        }
    }
    create.option("--progress", "none");
    create.option("--entrypoint", init.inside.as_os_str());
    create.arguments.push(image.into());
    create.arguments.extend(init.args.iter().map(Into::into));
    Ok(create)
}

pub(super) fn start(name: &str) -> Invocation {
    Invocation::new(["start", name])
}

pub(super) fn stop(name: &str, grace: Duration) -> Invocation {
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let seconds = seconds.to_string();
    Invocation::new(["stop", "--signal", "SIGTERM", "--time", &seconds, name])
}

pub(super) fn delete(name: &str, force: bool) -> Invocation {
    if force {
        Invocation::new(["delete", "--force", name])
    } else {
        Invocation::new(["delete", name])
    }
}

pub(super) fn list() -> Invocation {
    Invocation::new(["list", "--all", "--format", "json"])
}

pub(super) fn logs(name: &str, lines: usize) -> Invocation {
    Invocation::new(["logs", "-n", &lines.to_string(), name])
}

pub(super) fn exec(name: &str, program: &Program) -> Invocation {
    let mut invocation = Invocation::new(["exec", "--interactive", "--user", "0:0"]);
    for variable in &program.unset_env {
        invocation.option("--env", format!("{variable}="));
    }
    invocation.arguments.push(name.into());
    invocation
        .arguments
        .extend(program.argv.iter().map(OsString::from));
    invocation
}

pub(super) fn inspect_image(image: &str) -> Invocation {
    Invocation::new(["image", "inspect", image])
}

pub(super) fn list_images() -> Invocation {
    Invocation::new(["image", "list", "--quiet"])
}

pub(super) fn delete_image(image: &str) -> Invocation {
    Invocation::new(["image", "delete", image])
}

pub(super) fn pull(image: &str) -> Invocation {
    Invocation::new(["image", "pull", "--progress", "none", image])
}

pub(super) fn build(
    image: &str,
    dockerfile: &Path,
    build_args: &BTreeMap<String, String>,
    names: &DataDirNames,
) -> Invocation {
    let mut build = Invocation::new(["build", "--progress", "plain"]);
    build.option("--tag", image);
    build.option("--label", format!("{DATA_DIR_LABEL}={}", names.hash()));
    for (name, value) in build_args {
        build.option("--build-arg", format!("{name}={value}"));
    }
    build.option("--file", dockerfile);
    let directory = dockerfile.parent().unwrap_or(Path::new("."));
    build.arguments.push(directory.into());
    build
}

fn network(network: Network) -> Result<&'static str> {
    match network {
        Network::None => Ok("none"),
        Network::Bridge => Ok("default"),
        Network::Policy => Err(RuntimeError::Unsupported(
            "The apple runtime has no network `policy`: no socket of the host can be mounted into its \
             containers; use `bridge` or `none`."
                .to_owned(),
        )),
        Network::Host => Err(RuntimeError::Unsupported(
            "The apple runtime has no network `host`; use `bridge` or `none`.".to_owned(),
        )),
    }
}

fn bind(host: &Path, inside: &Path, read_only: bool) -> Result<String> {
    let text = |path: &Path| {
        let text = path.to_str().filter(|text| !text.contains(','));
        text.map(str::to_owned).ok_or_else(|| {
            RuntimeError::Unsupported(format!(
                "`container` cannot mount {}: the path contains a comma or is not UTF-8.",
                path.display()
            ))
        })
    };
    let (host, inside) = (text(host)?, text(inside)?);
    let end = if read_only { ",readonly" } else { "" };
    Ok(format!("type=bind,source={host},target={inside}{end}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{ContainerId, ContainerLimits, ImageSource, Init, Mount};

    fn spec() -> ContainerSpec {
        let env = [("OUBLIETTE_CONTAINER_KEY", "secret"), ("LANG", "C.UTF-8")];
        ContainerSpec {
            id: ContainerId::new("c1").unwrap(),
            project: "p1".to_owned(),
            image: ImageSource {
                build_args: BTreeMap::new(),
                name: "dev".to_owned(),
                image: None,
                dockerfile: Some("/d/Dockerfile".into()),
            },
            mounts: vec![
                Mount {
                    host: "/data/my files".into(),
                    inside: "/workspace".into(),
                    read_only: false,
                    owner: None,
                },
                Mount {
                    host: "/data/tools".into(),
                    inside: "/tools".into(),
                    read_only: true,
                    owner: None,
                },
            ],
            protected: Vec::new(),
            hostname: "p1".to_owned(),
            network: Network::None,
            limits: ContainerLimits {
                memory_bytes: Some((64 << 20) + 1),
                cpus: Some(1.5),
                processes: Some(100),
                disk_bytes: None,
            },
            users_of: None,
            init: Init {
                binary: "/opt/client".into(),
                inside: "/bin/oubliette-client".into(),
                args: vec!["init".to_owned()],
                env: BTreeMap::from(env.map(|(a, b)| (a.to_owned(), b.to_owned()))),
            },
        }
    }

    fn words(invocation: &Invocation) -> Vec<&str> {
        let words = invocation.arguments.iter();
        words.map(|word| word.to_str().unwrap()).collect()
    }

    #[test]
    fn create_has_every_argument() {
        let names = DataDirNames::new(Path::new("/h"));
        let create = create(&spec(), "image:1", &names, 8).unwrap();
        let name = names.container_name(&spec().id);
        let label = format!("{DATA_DIR_LABEL}={}", names.hash());
        let mut expected = vec!["create", "--name", &name, "--label", &label];
        expected.extend(["--label", "dev.oubliette.container=c1"]);
        expected.extend(["--label", "dev.oubliette.project=p1"]);
        expected.extend(["--user", "0:0", "--workdir", "/", "--network", "none"]);
        expected.extend(["--cap-drop", "ALL"]);
        for capability in CONTAINER_CAPABILITIES {
            expected.extend(["--cap-add", capability.name]);
        }
        expected.extend(["--memory", "65M", "--cpus", "2"]);
        for mount in [
            "type=bind,source=/data/my files,target=/workspace",
            "type=bind,source=/data/tools,target=/tools,readonly",
            "type=bind,source=/opt/client,target=/bin/oubliette-client,readonly",
        ] {
            expected.extend(["--mount", mount]);
        }
        expected.extend(["--env", "LANG=C.UTF-8"]);
        expected.extend(["--env", "OUBLIETTE_CONTAINER_KEY"]);
        expected.extend(["--progress", "none"]);
        expected.extend(["--entrypoint", "/bin/oubliette-client", "image:1", "init"]);
        assert_eq!(words(&create), expected);
        assert_eq!(
            create.variables,
            [("OUBLIETTE_CONTAINER_KEY".to_owned(), "secret".to_owned())]
        );
    }

    #[test]
    fn no_secret_is_an_argument() {
        let create = create(&spec(), "i", &DataDirNames::new(Path::new("/h")), 8).unwrap();
        assert!(!words(&create).concat().contains("secret"));
    }

    #[test]
    fn absent_limits_are_left_out_and_cpus_are_capped() {
        let names = DataDirNames::new(Path::new("/h"));
        let with = |limits| {
            let spec = ContainerSpec { limits, ..spec() };
            let create = create(&spec, "i", &names, 8).unwrap();
            let words = words(&create).join(" ");
            (words.contains("--memory"), words.contains("--cpus 8 "))
        };
        assert_eq!(with(ContainerLimits::default()), (false, false));
        let many = ContainerLimits {
            cpus: Some(100.0),
            ..ContainerLimits::default()
        };
        assert_eq!(with(many), (false, true));
    }

    #[test]
    fn paths_with_commas_and_the_network_host_are_refused() {
        let names = DataDirNames::new(Path::new("/h"));
        let mut comma = spec();
        comma.mounts[0].host = "/a,readonly".into();
        let host = ContainerSpec {
            network: Network::Host,
            ..spec()
        };
        for spec in [comma, host] {
            let error = create(&spec, "i", &names, 8).unwrap_err();
            assert!(matches!(error, RuntimeError::Unsupported(_)), "{error:?}");
        }
    }

    #[test]
    fn the_other_commands() {
        let args = BTreeMap::from([("BASE".to_owned(), "b".to_owned())]);
        let names = DataDirNames::new(Path::new("/h"));
        let label = format!("{DATA_DIR_LABEL}={}", names.hash());
        let grace = Duration::from_millis(1500);
        for (invocation, expected) in [
            (version(), vec!["--version"]),
            (status(), vec!["system", "status"]),
            (start("n"), vec!["start", "n"]),
            (
                stop("n", grace),
                vec!["stop", "--signal", "SIGTERM", "--time", "2", "n"],
            ),
            (delete("n", true), vec!["delete", "--force", "n"]),
            (delete("n", false), vec!["delete", "n"]),
            (list(), vec!["list", "--all", "--format", "json"]),
            (logs("n", 7), vec!["logs", "-n", "7", "n"]),
            (inspect_image("i"), vec!["image", "inspect", "i"]),
            (pull("i"), vec!["image", "pull", "--progress", "none", "i"]),
            (
                build("i", Path::new("/d/Dockerfile.dev"), &args, &names),
                vec![
                    "build",
                    "--progress",
                    "plain",
                    "--tag",
                    "i",
                    "--label",
                    &label,
                    "--build-arg",
                    "BASE=b",
                    "--file",
                    "/d/Dockerfile.dev",
                    "/d",
                ],
            ),
        ] {
            assert_eq!(words(&invocation), expected);
        }
    }
}
