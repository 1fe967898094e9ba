//! The packages: they hold the program, its licences and its services, and the same binary gives the same bytes.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use dipaco_tests::fixtures::root;
use dipaco_tests::process::{Output, binary, clean, output};
use dipaco_tests::python::interpreter;

/// Calls a program of this machine.
fn call(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Output {
    output(clean(Command::new(program), args))
}

/// Calls the packer for the program under test. All packages of one test name the same time.
fn pack(kinds: &[&str], out: &Path) -> Output {
    let mut command = clean(Command::new("python3"), [root().join("scripts/package.py")]);
    command.arg("--binary").arg(binary()).arg("--out").arg(out).args(kinds);
    command.env("SOURCE_DATE_EPOCH", "1700000000").env("PYTHONDONTWRITEBYTECODE", "1");
    output(command)
}

/// The path in the last line of the packer's output.
fn packed(output: Output) -> PathBuf {
    PathBuf::from(output.succeeded().stdout.lines().last().unwrap())
}

/// The files below a folder, by their path in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let listed = call("find", &[folder.to_str().unwrap(), "-type", "f", "-printf", "%P\\n"]).succeeded();
    listed.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn the_wheel_installs_program_and_module_with_their_licences() {
    let folder = tempfile::tempdir().unwrap();
    let wheel = packed(pack(&["wheel"], folder.path()));
    let again = packed(pack(&["wheel"], &folder.path().join("again")));
    assert!(fs::read(&wheel).unwrap() == fs::read(again).unwrap(), "the same binary gives the same wheel");

    let venv = folder.path().join("venv");
    let _ = call("python3", &["-m", "venv", venv.to_str().unwrap()]).succeeded();
    let pip = ["install", "--quiet", "--no-index", "--disable-pip-version-check", wheel.to_str().unwrap()];
    let _ = call(venv.join("bin/pip"), &pip).succeeded();
    let program = venv.join("bin/dipaco");
    assert!(fs::read(&program).unwrap() == fs::read(binary()).unwrap());
    let version = call(&program, &["--version"]).succeeded().stdout;
    assert!(wheel.file_name().unwrap().to_str().unwrap().starts_with(&version.trim().replace(' ', "-")));
    let _ = call(&program, &["--help"]).succeeded().says("quickstart");
    let shown = call(venv.join("bin/pip"), &["show", "--files", "dipaco"]).succeeded().stdout;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"] {
        assert!(shown.contains(&format!("licenses/{file}")), "{shown}");
    }

    // The module is beside the program in the wheel. It needs no NumPy before arrays are asked for.
    let same = "import dipaco; print(dipaco.__version__, dipaco.Run.__name__)";
    let module = call(venv.join("bin/python"), &["-I", "-c", same]).succeeded().stdout;
    assert_eq!(module.trim(), format!("{} Run", version.trim().trim_start_matches("dipaco ")));
    let nowhere = "import dipaco; dipaco.Run('nowhere')";
    let _ = call(venv.join("bin/python"), &["-I", "-c", nowhere]).failed(1, &["dipaco.RunError", "nowhere"]);
    for file in ["dipaco/__init__.py", "dipaco/__init__.pyi", "dipaco/py.typed", "dipaco/_dipaco.abi3.so"] {
        assert!(shown.contains(file), "{shown}");
    }

    // The judgement of PyPA's own tool about the tag.
    let Some(python) = interpreter("auditwheel") else { return };
    let judged = call(python, &["-m", "auditwheel", "show", wheel.to_str().unwrap()]).succeeded().stdout;
    let judged = judged.split_whitespace().collect::<Vec<_>>().join(" ");
    let tag = wheel.file_stem().unwrap().to_str().unwrap().rsplit_once("-abi3-").unwrap().1;
    assert!(judged.contains(&format!("consistent with the following platform tag: \"{tag}\"")), "{judged}");
}

#[test]
fn a_build_knows_its_commit_and_whether_files_were_changed() {
    let folder = tempfile::tempdir().unwrap();
    let git = |words: &str| {
        let user = [
            "-C",
            folder.path().to_str().unwrap(),
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@localhost",
        ];
        let words: Vec<&str> = user.into_iter().chain(words.split(' ')).collect();
        call("git", &words).succeeded().stdout.trim().to_owned()
    };
    let commit = || {
        let ask = format!(
            "import sys; sys.path.insert(0, {:?}); sys.dont_write_bytecode = True\n\
             from packages.commit_of_sources import commit_of_sources; print(commit_of_sources({:?}))",
            root().join("scripts"),
            folder.path()
        );
        call("python3", &["-c", &ask]).succeeded().stdout.trim().to_owned()
    };
    let _ = git("init --quiet");
    assert_eq!(commit(), "", "there is no commit");
    fs::write(folder.path().join("file"), "one").unwrap();
    let _ = git("add file");
    let _ = git("commit --quiet --message one");
    let _ = git("tag v1");
    let hash = git("rev-parse HEAD");
    assert_eq!((commit(), hash.len()), (hash.clone(), 40));
    fs::write(folder.path().join("other"), "not of the commit").unwrap();
    assert_eq!(commit(), hash);
    fs::write(folder.path().join("file"), "two").unwrap();
    assert_eq!(commit(), format!("{hash}-dirty"));
}

#[test]
fn a_binary_for_newer_systems_is_refused_with_its_symbols() {
    let folder = tempfile::tempdir().unwrap();
    // Every binary with a `main` imports a symbol that is newer than this version.
    let refused = pack(&["wheel", "--glibc", "2.1"], folder.path());
    let _ = refused.failed(1, &["needs a newer glibc than 2.1:", "__libc_start_main", "leave out --glibc"]);
    assert!(files(folder.path()).is_empty(), "a refused binary is not packed");
    let elsewhere = pack(&["wheel", "--binary", "/etc/passwd"], folder.path());
    let _ = elsewhere.failed(1, &["/etc/passwd"]);
}

/// Writes a program of the shell into a folder.
fn write_program(folder: &Path, name: &str, script: &str) {
    fs::write(folder.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn nothing_is_built_after_a_setup_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = root().join("scripts");
    let _ = call("cp", &["-r", scripts.to_str().unwrap(), folder.path().to_str().unwrap()]).succeeded();
    // There is no cmake, and nothing can be installed.
    let programs = folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for name in ["cmake", "python3", "apt-get"] {
        write_program(&programs, name, "exit 1");
    }
    for name in ["cc", "c++", "make"] {
        write_program(&programs, name, "");
    }
    write_program(&programs, "sudo", "exec \"$@\"");
    write_program(&programs, "cargo", "echo cargo was called >&2");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());

    let python = call("python3", &["-c", "import sys; print(sys.executable)"]).succeeded().stdout;
    let build = "import pathlib, sys; sys.path.insert(0, 'scripts'); sys.dont_write_bytecode = True\n\
                 from packages.build import build; build(pathlib.Path.cwd(), None, 0)";
    let callers: [&[&str]; 3] =
        [&["bash", "scripts/test.sh"], &["bash", "scripts/quickstart.sh"], &[python.trim(), "-c", build]];
    for caller in callers {
        let mut command = clean(Command::new(caller[0]), &caller[1..]);
        command.current_dir(folder.path()).env("PATH", &path);
        let failed = output(command).failed(1, &["setup: installing python3 python3-venv"]);
        assert!(!failed.stderr.contains("cargo was called"), "{caller:?}: {}", failed.stderr);
    }
}

/// Installs the package in `tree`, whose script finds nothing but the programs in a new folder: they leave this machine alone.
fn makes_the_user_and_its_folders(tree: &Path, programs: &Path) {
    fs::create_dir(programs).unwrap();
    let install = || {
        let mut script = clean(Command::new("/bin/sh"), [tree.join("DEBIAN/postinst")]);
        script.arg("configure").env("PATH", programs);
        let _ = output(script).succeeded();
    };
    write_program(programs, "systemctl", "");
    install();
    assert!(!tree.join("var").exists(), "a container without systemd gets neither user nor folders");

    let tools = ["systemd-sysusers", "systemd-tmpfiles"].map(|name| (name, Path::new("/usr/bin").join(name)));
    if !rustix::process::geteuid().is_root() || tools.iter().any(|(_, tool)| !tool.exists()) {
        eprintln!("only root can give folders to a user, and only with systemd: this is left out");
        return;
    }
    for (name, tool) in tools {
        write_program(programs, name, &format!("exec {} --root={} \"$@\"", tool.display(), tree.display()));
    }
    fs::create_dir(tree.join("etc")).unwrap();
    install();
    let users = fs::read_to_string(tree.join("etc/passwd")).unwrap();
    let user = users.lines().find_map(|line| line.strip_prefix("dipaco:x:")).unwrap();
    let user: u32 = user.split(':').next().unwrap().parse().unwrap();
    let made = |path: &str| {
        let folder = fs::metadata(tree.join(path)).unwrap();
        (folder.mode() & 0o7777, folder.uid())
    };
    assert_eq!((made("var/lib/dipaco"), made("etc/dipaco")), ((0o750, user), (0o755, 0)));
}

#[test]
fn the_debian_package_brings_services_that_systemd_understands() {
    let folder = tempfile::tempdir().unwrap();
    let package = packed(pack(&["deb"], folder.path()));
    let again = packed(pack(&["deb"], &folder.path().join("again")));
    assert!(
        fs::read(&package).unwrap() == fs::read(again).unwrap(),
        "the same binary gives the same package"
    );

    let package = package.to_str().unwrap();
    let fields = call("dpkg-deb", &["-I", package]).succeeded().stdout;
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
    let listed = call("dpkg-deb", &["-c", package]).succeeded().stdout;
    for line in listed.lines() {
        assert!(line.contains(" root/root "), "{line}");
        assert_eq!(line.starts_with("-rwx"), line.ends_with("./usr/bin/dipaco"), "{line}");
    }
    let tree = folder.path().join("tree");
    let _ = call("dpkg-deb", &["-R", package, tree.to_str().unwrap()]).succeeded();
    let version = call(tree.join("usr/bin/dipaco"), &["--version"]).succeeded().stdout;
    assert!(
        fields.contains(&format!("Version: {}", version.trim().trim_start_matches("dipaco "))),
        "{fields}"
    );
    let found = files(&tree);
    for file in [
        "dipaco/configs/quickstart.toml",
        "dipaco/configs/schemes/streaming.toml",
        "doc/dipaco/copyright",
        "doc/dipaco/LICENSE-APACHE.gz",
        "doc/dipaco/THIRD-PARTY.txt.gz",
        "bash-completion/completions/dipaco",
        "man/man1/dipaco.1.gz",
        "man/man1/dipaco-route-assign.1.gz",
    ] {
        assert!(found.contains(&format!("usr/share/{file}")), "{file}: {found:?}");
    }
    for script in ["postinst", "prerm"] {
        let _ = call("sh", &["-n", tree.join("DEBIAN").join(script).to_str().unwrap()]).succeeded();
    }
    makes_the_user_and_its_folders(&tree, &folder.path().join("programs"));

    // The services lie beside the targets of this machine, which they name.
    let units = tree.join("usr/lib/systemd/system");
    let services: Vec<PathBuf> = fs::read_dir(&units).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(services.len(), 4);
    let own = Path::new("/usr/lib/systemd/system");
    if !own.exists() || clean(Command::new("systemd-analyze"), ["--version"]).output().is_err() {
        eprintln!("this machine has no systemd: its judgement is left out");
        return;
    }
    for entry in fs::read_dir(own).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "target" || ending == "slice") {
            fs::copy(&file, units.join(file.file_name().unwrap())).unwrap();
        }
    }
    for service in services {
        let name = service.file_name().unwrap().to_str().unwrap().replace('@', "@a-run");
        let tree = format!("--root={}", tree.display());
        let judged = call("systemd-analyze", &["verify", &tree, "--man=no", &name]).succeeded();
        assert_eq!(judged.stderr, "", "{name}");
    }
}

#[test]
fn the_folder_of_the_container_has_what_its_dockerfile_copies() {
    let folder = tempfile::tempdir().unwrap();
    let context = packed(pack(&["container"], folder.path()));
    let recipe = fs::read_to_string(context.join("Dockerfile")).unwrap();
    let mut copied = BTreeSet::from(["Dockerfile".to_owned()]);
    for line in recipe.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        copied.extend(words[..words.len() - 1].iter().map(|word| (*word).to_owned()));
    }
    assert_eq!(files(&context), copied);
    let _ = call(context.join("dipaco"), &["--version"]).succeeded();
    assert!(recipe.contains("\nUSER 65532:65532\n") && recipe.contains("\nHEALTHCHECK "), "{recipe}");
}

#[test]
fn a_shell_that_sources_the_setup_takes_the_cmake_of_the_clone_only_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let clone = folder.path().canonicalize().unwrap();
    fs::create_dir_all(clone.join("scripts")).unwrap();
    fs::copy(root().join("scripts/setup.sh"), clone.join("scripts/setup.sh")).unwrap();
    let script = r#"
        for tool in tools/cargo tools/cc tools/c++ tools/make tools/cmake "$@"; do
          mkdir -p "${tool%/*}"
          printf '#!/bin/sh\necho cmake version 3.31.10\n' >"$tool"
          chmod +x "$tool"
        done
        PATH="$PWD/tools:$PATH"
        source scripts/setup.sh
        echo "$PATH""#;
    let path = |more: &str| {
        // In a session of its own the shell has no terminal to take over.
        let shell = ["--wait", "bash", "--norc", "-ic", script, "bash"];
        let words = shell.into_iter().chain(more.split_whitespace());
        let mut command = clean(Command::new("setsid"), words);
        command.current_dir(&clone);
        output(command).succeeded().stdout
    };
    let first = |folder: &str| format!("{}:", clone.join(folder).display());
    assert!(path("").starts_with(&first("tools")));
    assert!(path(".cmake/bin/cmake").starts_with(&first(".cmake/bin")));
}
