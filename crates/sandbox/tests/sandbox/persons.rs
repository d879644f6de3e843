//! Directories of people: their files keep their owners.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use oubliette_sandbox::{Bind, ProtectedPath, launch};
use rustix::fs::XattrFlags;

use crate::support::{Host, Mode, in_modes, init_binary};

/// Who owns the directory if the launcher is root: ids without a user on a test machine.
const PERSON: (u32, u32) = (54_322, 54_323);

/// Of each entry: owner, group, mode, time of the last change of its content, and an attribute.
type Owners = BTreeMap<PathBuf, (u32, u32, u32, i64, Vec<u8>)>;

fn owners(directory: &Path) -> Owners {
    let mut found = Owners::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let mut mark = [0; 16];
        let read = rustix::fs::lgetxattr(&path, "user.mark", &mut mark).unwrap_or(0);
        if about.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            pending.extend(entries.map(|entry| entry.unwrap().path()));
        }
        let (uid, gid, mode) = (about.uid(), about.gid(), about.mode());
        let modified = if about.is_dir() {
            0
        } else {
            about.mtime_nsec()
        };
        found.insert(path, (uid, gid, mode, modified, mark[..read].to_vec()));
    }
    found
}

fn a_persons_directory_keeps_its_owners_and_gets_files_of_its_owner(host: &Host) {
    let person = host.path("person");
    let at = |name: &str| person.join(name);
    fs::create_dir_all(at("dir")).unwrap();
    for (name, mode) in [
        ("private", 0o600),
        ("dir/run", 0o755),
        ("foreign", 0o600),
        ("open", 0o666),
    ] {
        fs::write(at(name), name).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    rustix::fs::setxattr(at("private"), "user.mark", b"kept", XattrFlags::empty()).unwrap();
    let is_root = host.mode == Mode::Root;
    let owner = if is_root {
        for name in ["", "dir", "private", "dir/run"] {
            chown(at(name), Some(PERSON.0), Some(PERSON.1)).unwrap();
        }
        PERSON
    } else {
        let about = fs::metadata(&person).unwrap();
        (about.uid(), about.gid())
    };
    let before = owners(&person);

    let mut spec = host.spec("a");
    let own = std::mem::replace(
        &mut spec.binds[0],
        Bind {
            host: person.clone(),
            inside: "/workspace".into(),
            read_only: false,
            owner: Some(owner),
        },
    );
    spec.protected = vec![ProtectedPath {
        within: "/workspace".into(),
        path: "guard/policy".into(),
    }];
    for round in 0..2 {
        let sandbox = host.launch(spec.clone());
        let seen = sandbox.read("cd /workspace; stat -c %u:%g . private; cat private dir/run");
        assert_eq!(seen, "0:0\n0:0\nprivatedir/run");
        let made = format!(
            "cd /workspace; mkdir made{round}; echo x > made{round}/file; ln -s file made{round}/link; \
             mv made{round}/file made{round}/moved; cat made{round}/moved"
        );
        assert_eq!(sandbox.read(&made), "x");
        assert!(!sandbox.can("echo x > /workspace/guard/policy/x"));
        if is_root {
            // Root inside is the person, not the host's root: these are the host's root's.
            assert!(!sandbox.can("cat /workspace/foreign"));
            assert!(!sandbox.can("echo x >> /workspace/open"));
            // No other user exists there.
            assert!(!sandbox.can("chown 1 /workspace/private"));
        }
        sandbox.stop();
    }
    let mut after = owners(&person);
    let made: Owners = after
        .extract_if(.., |path, _| !before.contains_key(path))
        .collect();
    assert_eq!(after, before);
    assert_eq!(made.len(), 2 * 3 + 2, "{made:?}");
    for (path, about) in &made {
        assert_eq!((about.0, about.1), owner, "{}", path.display());
    }

    // What was checked before the launch must still be so.
    let refused = |bind: Bind| {
        let mut spec = spec.clone();
        spec.binds[0] = bind;
        let error = launch(&spec, &init_binary()).unwrap_err().to_string();
        assert!(error.contains("stay those of user"), "{error}");
    };
    let bind = spec.binds[0].clone();
    refused(Bind {
        owner: Some((owner.0 + 1, owner.1)),
        ..bind.clone()
    });
    symlink(&person, host.path("link")).unwrap();
    refused(Bind {
        host: host.path("link"),
        ..bind.clone()
    });
    refused(Bind {
        host: host.path("link").join("dir"),
        ..bind
    });
    assert_eq!(
        owners(&person)
            .into_iter()
            .filter(|(path, _)| before.contains_key(path))
            .collect::<Owners>(),
        before
    );
    spec.binds[0] = own;
    oubliette_sandbox::remove(&spec.state_dir, &spec.layers_dir).unwrap();
    host.assert_nothing_left();
}
in_modes!(a_persons_directory_keeps_its_owners_and_gets_files_of_its_owner: root, user, bwrap);
