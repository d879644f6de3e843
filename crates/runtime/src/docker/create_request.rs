//! The request that creates a container: a pure function of the spec.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, Mount as EngineMount, MountType, RestartPolicy,
    RestartPolicyNameEnum,
};

use oubliette_sandbox::CONTAINER_CAPABILITIES;

use super::engine::EngineClient;
use super::process_user::UserIds;
use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
use crate::{ContainerLimits, ContainerSpec, Mount, Network, Result, RuntimeError};

/// The engine refuses less than a hundredth of a processor.
const MIN_CPUS: f64 = 0.01;

/// Where a program in the container resolves names, with the network `policy`.
const LOOPBACK_RESOLVER: &str = "127.0.0.1";

/// The features of the engine that the request depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineFeatures {
    pub(super) cpus: f64,
    pub(super) selinux: bool,
    /// Whether the engine can limit the disk space of a container.
    pub(super) limits_disk: bool,
    pub(super) user_ids: UserIds,
}

impl From<&EngineClient> for EngineFeatures {
    fn from(engine: &EngineClient) -> Self {
        Self {
            cpus: engine.cpus,
            selinux: engine.selinux,
            limits_disk: engine.limits_disk,
            user_ids: engine.user_ids,
        }
    }
}

pub(super) fn build(
    spec: &ContainerSpec,
    image: &str,
    names: &DataDirNames,
    host: EngineFeatures,
) -> Result<ContainerCreateBody> {
    let init = &spec.init;
    let program = utf8_path(&init.inside)?;
    let own = init
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let variables = own.chain(user_variables(spec, host.user_ids)?);
    Ok(ContainerCreateBody {
        hostname: Some(spec.hostname.clone()),
        // Overrides the image: the supervisor switches users for each process.
        user: Some("0:0".to_owned()),
        env: Some(variables.collect()),
        entrypoint: Some(vec![program]),
        cmd: Some(init.args.clone()),
        image: Some(image.to_owned()),
        working_dir: Some("/".to_owned()),
        // The image's own health check would run commands beside the supervisor.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        labels: Some(labels(spec, names)),
        stop_signal: Some("SIGTERM".to_owned()),
        host_config: Some(host_config(spec, host)?),
        ..ContainerCreateBody::default()
    })
}

/// Tells the supervisor which user processes run as, and which directories that user must own.
fn user_variables(spec: &ContainerSpec, ids: UserIds) -> Result<Vec<String>> {
    let owned = spec.mounts.iter().find(|mount| mount.owner.is_some());
    let user = match owned.and_then(|mount| Some((mount, mount.owner?))) {
        Some((mount, owner)) => ids.of_owner(owner, &mount.host)?,
        None => ids.of_project(&spec.project),
    };
    let Some((uid, gid)) = user else {
        return Ok(Vec::new());
    };
    // Directories of a person keep their owners.
    let mounts = spec.mounts.iter().filter(|mount| mount.owner.is_none());
    let writable = || mounts.clone().filter(|mount| !mount.read_only);
    // The others are in one of these.
    let tops = writable().filter(|mount| {
        let is_above = |other: &&Mount| {
            mount.inside != other.inside && mount.inside.starts_with(&other.inside)
        };
        !writable().any(|other| is_above(&other))
    });
    let owned: Vec<String> = tops
        .map(|mount| mount.inside.display().to_string())
        .collect();
    Ok(vec![
        format!("OUBLIETTE_USER={uid}:{gid}"),
        format!("OUBLIETTE_OWNED={}", owned.join(":")),
    ])
}

fn labels(spec: &ContainerSpec, names: &DataDirNames) -> HashMap<String, String> {
    HashMap::from([
        (DATA_DIR_LABEL.to_owned(), names.hash().to_owned()),
        (CONTAINER_LABEL.to_owned(), spec.id.to_string()),
        (PROJECT_LABEL.to_owned(), spec.project.clone()),
    ])
}

fn host_config(spec: &ContainerSpec, host: EngineFeatures) -> Result<HostConfig> {
    let mut mounts = Vec::with_capacity(spec.mounts.len() + 1);
    for mount in &spec.mounts {
        mounts.push(bind(&mount.host, &mount.inside, mount.read_only)?);
    }
    mounts.push(bind(&spec.init.binary, &spec.init.inside, true)?);
    let mut security = vec!["no-new-privileges".to_owned()];
    if host.selinux {
        security.push("label=disable".to_owned());
    }
    let limits = EngineLimits::convert(&spec.limits, host.cpus);
    Ok(HostConfig {
        memory: limits.memory,
        // Equal to the memory limit: no additional swap.
        memory_swap: limits.memory,
        nano_cpus: limits.nano_cpus,
        pids_limit: limits.processes,
        storage_opt: spec
            .limits
            .disk_bytes
            .filter(|_| host.limits_disk)
            .map(|bytes| HashMap::from([("size".to_owned(), bytes.to_string())])),
        network_mode: Some(network(spec.network)?.to_owned()),
        dns: (spec.network == Network::Policy).then(|| vec![LOOPBACK_RESOLVER.to_owned()]),
        mounts: Some(mounts),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(
            CONTAINER_CAPABILITIES
                .map(|capability| capability.short_name().to_owned())
                .to_vec(),
        ),
        security_opt: Some(security),
        privileged: Some(false),
        readonly_rootfs: Some(false),
        // The supervisor is PID 1 itself.
        init: Some(false),
        // Only the server starts containers.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        ..HostConfig::default()
    })
}

fn network(network: Network) -> Result<&'static str> {
    match network {
        // The way out is a socket in a mounted directory.
        Network::None | Network::Policy => Ok("none"),
        Network::Bridge => Ok("bridge"),
        Network::Host => Err(RuntimeError::Unsupported(
            "The docker runtime has no network `host`; use `policy`, `bridge` or `none`."
                .to_owned(),
        )),
    }
}

/// Unlike `binds`, a mount fails if the host's path is missing instead of creating it.
pub(super) fn bind(
    host: &std::path::Path,
    inside: &std::path::Path,
    read_only: bool,
) -> Result<EngineMount> {
    Ok(EngineMount {
        typ: Some(MountType::BIND),
        source: Some(utf8_path(host)?),
        target: Some(utf8_path(inside)?),
        read_only: Some(read_only),
        ..EngineMount::default()
    })
}

fn utf8_path(path: &std::path::Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        RuntimeError::Unsupported(format!(
            "The path {} is not UTF-8, which the engine requires.",
            path.display()
        ))
    })
}

/// Limits in the engine's units.
struct EngineLimits {
    memory: Option<i64>,
    nano_cpus: Option<i64>,
    processes: Option<i64>,
}

impl EngineLimits {
    fn convert(limits: &ContainerLimits, cpus: f64) -> Self {
        let memory = limits
            .memory_bytes
            .map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        // The engine refuses more processors than the host has.
        let nano_cpus = limits
            .cpus
            .filter(|requested| requested.is_finite())
            .map(|requested| (requested.min(cpus).max(MIN_CPUS) * 1e9).round() as i64);
        Self {
            memory,
            nano_cpus,
            processes: limits.processes.map(i64::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::{ContainerId, ImageSource, Init};

    const FEATURES: EngineFeatures = EngineFeatures {
        cpus: 2.0,
        selinux: false,
        limits_disk: false,
        user_ids: UserIds {
            server: (1001, 1002),
            is_rootless: false,
            has_project_ids: true,
        },
    };

    fn spec() -> ContainerSpec {
        ContainerSpec {
            id: ContainerId::new("c1").unwrap(),
            project: "p1".to_owned(),
            image: ImageSource {
                name: "dev".to_owned(),
                image: Some("debian:12".to_owned()),
                dockerfile: None,
                build_args: BTreeMap::new(),
            },
            mounts: vec![Mount {
                host: "/data/with:colon".into(),
                inside: "/workspace".into(),
                read_only: false,
                owner: None,
            }],
            protected: Vec::new(),
            hostname: "p1".to_owned(),
            network: Network::None,
            limits: ContainerLimits {
                memory_bytes: Some(64 << 20),
                cpus: Some(16.0),
                processes: Some(100),
                disk_bytes: Some(64 << 20),
            },
            users_of: None,
            init: Init {
                binary: "/opt/client".into(),
                inside: "/bin/oubliette-client".into(),
                args: vec!["init".to_owned()],
                env: BTreeMap::from([("A".to_owned(), "b=c".to_owned())]),
            },
        }
    }

    fn body(spec: &ContainerSpec) -> ContainerCreateBody {
        build(
            spec,
            "debian:12",
            &DataDirNames::new(Path::new("/h")),
            FEATURES,
        )
        .unwrap()
    }

    #[test]
    fn containers_are_hardened() {
        let host = body(&spec()).host_config.unwrap();
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        let expected = CONTAINER_CAPABILITIES.map(|capability| capability.name.replace("CAP_", ""));
        assert_eq!(host.cap_add.unwrap(), expected);
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges".to_owned()])
        );
        assert_eq!((host.privileged, host.init), (Some(false), Some(false)));
        assert_eq!(
            host.restart_policy.unwrap().name,
            Some(RestartPolicyNameEnum::NO)
        );
        assert_eq!(host.network_mode.as_deref(), Some("none"));
    }

    #[test]
    fn the_supervisor_is_pid_1_and_overrides_the_image() {
        let body = body(&spec());
        assert_eq!(
            body.entrypoint,
            Some(vec!["/bin/oubliette-client".to_owned()])
        );
        assert_eq!(body.cmd, Some(vec!["init".to_owned()]));
        let variables = [
            "A=b=c",
            "OUBLIETTE_USER=1001:1002",
            "OUBLIETTE_OWNED=/workspace",
        ];
        assert_eq!(body.env.unwrap(), variables);
        assert_eq!(body.user.as_deref(), Some("0:0"));
        let mounts = body.host_config.unwrap().mounts.unwrap();
        let seen: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let path = |path: &Option<String>| path.clone().unwrap();
                (path(&mount.source), path(&mount.target), mount.read_only)
            })
            .collect();
        let expected = [
            ("/data/with:colon", "/workspace", false),
            ("/opt/client", "/bin/oubliette-client", true),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), Some(c)));
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_user_owns_the_writable_mounts() {
        let mount = |inside: &str, read_only| Mount {
            host: "/data".into(),
            inside: inside.into(),
            read_only,
            owner: None,
        };
        let spec = ContainerSpec {
            mounts: vec![
                mount("/workspace", false),
                mount("/root", false),
                mount("/workspace/a:b", false),
                mount("/workspaces", false),
                mount("/mcp", true),
            ],
            ..spec()
        };
        let variables = user_variables(&spec, FEATURES.user_ids).unwrap();
        assert_eq!(variables[1], "OUBLIETTE_OWNED=/workspace:/root:/workspaces");
        let rootless = UserIds {
            is_rootless: true,
            ..FEATURES.user_ids
        };
        assert!(user_variables(&spec, rootless).unwrap().is_empty());
    }

    #[test]
    fn processes_are_the_owner_of_a_persons_directory_which_is_given_to_no_other_user() {
        let spec = |owner| ContainerSpec {
            mounts: vec![
                Mount {
                    host: "/home/p/app".into(),
                    inside: "/workspace".into(),
                    read_only: false,
                    owner: Some(owner),
                },
                Mount {
                    host: "/data".into(),
                    inside: "/root".into(),
                    read_only: false,
                    owner: None,
                },
            ],
            ..spec()
        };
        let server = FEATURES.user_ids;
        let root = UserIds {
            server: (0, 0),
            ..server
        };
        let rootless = UserIds {
            is_rootless: true,
            ..server
        };
        let owned = "OUBLIETTE_OWNED=/root";
        for (ids, owner, expected) in [
            (
                server,
                (1001, 7),
                Some(vec!["OUBLIETTE_USER=1001:1002", owned]),
            ),
            (server, (1002, 7), None),
            (root, (1001, 7), Some(vec!["OUBLIETTE_USER=1001:7", owned])),
            (root, (0, 0), None),
            (rootless, (1001, 7), Some(vec![])),
            (rootless, (1002, 7), None),
        ] {
            let variables = user_variables(&spec(owner), ids);
            match expected {
                Some(expected) => assert_eq!(variables.unwrap(), expected, "{ids:?} {owner:?}"),
                None => assert!(
                    matches!(variables, Err(RuntimeError::Unsupported(_))),
                    "{ids:?} {owner:?}"
                ),
            }
        }
    }

    #[test]
    fn limits_are_converted_to_the_engines_units_and_capped_by_the_host() {
        let host = body(&spec()).host_config.unwrap();
        assert_eq!(
            (host.memory, host.memory_swap),
            (Some(64 << 20), host.memory)
        );
        assert_eq!(host.nano_cpus, Some(2_000_000_000));
        assert_eq!(host.pids_limit, Some(100));
        for (cpus, expected) in [
            (Some(0.5), Some(500_000_000)),
            (Some(0.0), Some(10_000_000)),
            (Some(f64::NAN), None),
            (None, None),
        ] {
            let limits = ContainerLimits {
                cpus,
                ..ContainerLimits::default()
            };
            let converted = EngineLimits::convert(&limits, 2.0);
            assert_eq!((converted.nano_cpus, converted.memory), (expected, None));
        }
    }

    #[test]
    fn disk_space_is_limited_only_where_the_engine_can() {
        assert_eq!(body(&spec()).host_config.unwrap().storage_opt, None);
        let host = EngineFeatures {
            limits_disk: true,
            ..FEATURES
        };
        let body = build(&spec(), "x", &DataDirNames::new(Path::new("/h")), host).unwrap();
        let options = body.host_config.unwrap().storage_opt.unwrap();
        assert_eq!(options["size"], (64u64 << 20).to_string());
    }

    #[test]
    fn the_network_host_is_refused() {
        let spec = ContainerSpec {
            network: Network::Host,
            ..spec()
        };
        let error = build(&spec, "x", &DataDirNames::new(Path::new("/h")), FEATURES).unwrap_err();
        assert!(matches!(error, RuntimeError::Unsupported(_)));
    }

    #[test]
    fn selinux_separation_is_disabled_only_where_selinux_is_on() {
        let names = DataDirNames::new(Path::new("/h"));
        let selinux = EngineFeatures {
            selinux: true,
            ..FEATURES
        };
        let body = build(&spec(), "x", &names, selinux).unwrap();
        let options = body.host_config.unwrap().security_opt.unwrap();
        assert_eq!(options, ["no-new-privileges", "label=disable"]);
        assert_eq!(body.labels.unwrap()[DATA_DIR_LABEL], names.hash());
    }
}
