//! The files of deploy/: they fit the program, the schemas of Kubernetes and the shell.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use dipaco_net::JoinToken;
use dipaco_tests::fixtures::{corpus, pages, root};
use dipaco_tests::process::{Process, Signal, binary, clean, dipaco, field, output};
use dipaco_tests::python::{interpreter, python};
use dipaco_tests::run::{Run, routed, trained};

/// Asserts that a command has each option, by its help.
fn has_options(words: &[&str]) {
    let command: Vec<&str> =
        words.iter().copied().take_while(|word| !word.starts_with('-')).take(2).collect();
    let command =
        if ["route", "token"].contains(&command[0]) { command.join(" ") } else { command[0].to_owned() };
    let help = dipaco(&format!("{command} --help")).succeeded().stdout;
    for word in words.iter().filter(|word| word.starts_with("--")) {
        let option = word.split('=').next().unwrap();
        assert!(
            help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
            "{command} {option}"
        );
    }
}

#[test]
fn manifests_pass_the_newest_schemas_and_name_options_that_exist() {
    let folder = root().join("deploy/kubernetes");
    let folder = folder.to_str().unwrap();
    let Some(found) = python("kubernetes_validate", "kubernetes.py", &[folder]) else { return };
    assert!(found["checked"].as_u64() >= Some(30), "{found}");
    let commands = found["commands"].as_object().unwrap();
    let names = ["assign", "coordinator", "features", "prepare", "synchronizer", "worker"];
    assert_eq!(commands.keys().collect::<Vec<_>>(), names);
    let parts = found["parts"].as_object().unwrap();
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["dipaco-assign", "dipaco-features", "dipaco-prepare"]);
    for (job, numbers) in parts {
        assert_eq!(numbers[0], numbers[1], "{job} tells its pods how many there are");
    }
    for args in commands.values() {
        let words: Vec<&str> = args.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        has_options(&words);
    }
}

#[test]
fn kustomize_fills_the_manifests() {
    let mut kustomize = clean(Command::new("kubectl"), ["kustomize"]);
    kustomize.arg(root().join("deploy/kubernetes"));
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        eprintln!("skipped: there is no kubectl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("all.yaml"), output(kustomize).succeeded().stdout).unwrap();
    let args = [folder.path().to_str().unwrap()];
    let Some(found) = python("kubernetes_validate", "kubernetes.py", &args) else { return };
    assert_eq!(found["references"], found["maps"], "the settings reach every container that names them");
    let images = found["images"].as_object().unwrap();
    assert_eq!(images.keys().collect::<Vec<_>>(), ["assign", "coordinator", "features", "prepare", "worker"]);
    for (container, image) in images {
        assert!(image.as_str().unwrap().contains("/dipaco:"), "{container} has the image {image}");
    }
}

#[test]
fn what_ends_with_the_run_is_a_job_and_stays_ended() {
    let manifest = |name: &str| fs::read_to_string(root().join("deploy/kubernetes").join(name)).unwrap();
    // The exit codes after which another pod could not help.
    for (name, codes) in
        [("coordinator.yaml", "[2, 3]"), ("synchronizer.yaml", "[2]"), ("workers.yaml", "[2]")]
    {
        let text = manifest(name);
        let ends =
            |line: &str| line.contains("action: FailJob") && line.contains(&format!("values: {codes}}}"));
        assert!(text.contains("\nkind: Job\n") && text.lines().any(ends), "{name}: {text}");
        // Kubernetes starts their pods again whenever they end.
        assert!(!text.contains("StatefulSet") && !text.contains("Deployment"), "{name}: {text}");
    }
    // Otherwise those that were not there at the end would be started after it, and wait for a coordinator.
    assert!(!manifest("workers.yaml").contains("\n  completions:"));
}

#[test]
fn job_scripts_are_shell_and_name_options_that_exist() {
    let mut found = 0;
    for entry in fs::read_dir(root().join("deploy/slurm")).unwrap() {
        let file = entry.unwrap().path();
        let _ =
            output(clean(Command::new("bash"), [std::ffi::OsStr::new("-n"), file.as_os_str()])).succeeded();
        let script = fs::read_to_string(&file).unwrap().replace("\\\n", " ");
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            let Some((_, call)) = line.split_once("dipaco ") else { continue };
            has_options(&call.split_whitespace().collect::<Vec<_>>());
            found += 1;
        }
    }
    assert_eq!(found, 7);
    let printed = dipaco("launch slurm --run runs/none --workers 3 --print").succeeded();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.sh");
    fs::write(&file, &printed.stdout).unwrap();
    let _ = output(clean(Command::new("bash"), [std::ffi::OsStr::new("-n"), file.as_os_str()])).succeeded();
    let _ = printed.says("--array=0-2\n").says("RUN=runs/none\n").says("afterok:$shards");
}

/// A job script as Slurm runs it, with a program and a `scontrol` that only say how they are called.
struct Job {
    script: Process,
    /// A pipe that the program reads its exit code from. A handle for both directions never blocks.
    code: fs::File,
    _folder: tempfile::TempDir,
}

impl Job {
    /// Starts a script as task 2 of an array with the number 7. `complete` is the program's answer to `status --complete`.
    fn start(script: &str, complete: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        // It ends with the code that it reads, or by a signal.
        let program = format!(
            "[ \"$2\" = --complete ] && exit {complete}\necho \"begun by $PPID\" >&2\nread -r code < {:?}\nexit \"$code\"",
            file("code")
        );
        for (name, text) in [("dipaco", program), ("scontrol", "echo scontrol \"$@\"".to_owned())] {
            fs::write(file(name), format!("#!/bin/bash\n{text}\n")).unwrap();
            fs::set_permissions(file(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let _ = output(clean(Command::new("mkfifo"), [file("code")])).succeeded();
        let code = fs::OpenOptions::new().read(true).write(true).open(file("code")).unwrap();
        fs::create_dir_all(file("runs/mine/secrets")).unwrap();
        fs::write(file("runs/mine/secrets/join.token"), "token").unwrap();
        let mut command = clean(Command::new("bash"), [root().join("deploy/slurm").join(script)]);
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        command.current_dir(folder.path()).env("PATH", path).env("SLURM_CPUS_PER_TASK", "1");
        command.env("SLURM_JOB_ID", "7").env("SLURM_ARRAY_JOB_ID", "7").env("SLURM_ARRAY_TASK_ID", "2");
        // Bash takes a function before its own command.
        command.env("BASH_FUNC_kill%%", "() { [ \"$1\" = -0 ] || echo kill \"$1\"; builtin kill \"$@\"; }");
        Self { script: Process::start(command), code, _folder: folder }
    }

    /// Waits until the program runs and the shell waits for it.
    fn begun(mut self) -> Self {
        let line = self.script.line_with("begun by ");
        let stat = format!("/proc/{}/stat", line.rsplit(' ').next().unwrap());
        self.script.until("the shell waits", || fs::read_to_string(&stat).unwrap().contains(") S "));
        self
    }

    /// Ends the program with a code, and returns what the script printed and its code.
    fn end(mut self, code: u8) -> (String, i32) {
        self.code.write_all(format!("{code}\n").as_bytes()).unwrap();
        self.result()
    }

    fn result(self) -> (String, i32) {
        let output = self.script.finish();
        (output.stdout, output.status.code().unwrap())
    }
}

const ARRAYS: [&str; 4] = ["prepare.sbatch", "features.sbatch", "route.sbatch", "workers.sbatch"];
const SINGLE: [&str; 2] = ["seed.sbatch", "coordinator.sbatch"];

#[test]
fn at_its_time_limit_a_job_stops_in_order_and_asks_for_another_turn() {
    let arrays = ARRAYS.iter().map(|script| (script, "scontrol requeue 7_2\n"));
    for (script, requeue) in arrays.chain(SINGLE.iter().map(|script| (script, "scontrol requeue 7\n"))) {
        let job = Job::start(script, 1).begun();
        job.script.signal(Signal::USR1);
        let (printed, code) = job.result();
        assert_eq!(printed, format!("kill -TERM\n{requeue}"), "{script}");
        assert_ne!(code, 0, "{script}");
    }
}

#[test]
fn a_killed_program_is_started_again() {
    for script in ARRAYS {
        let job = Job::start(script, 1).begun();
        // Otherwise the jobs that wait for the whole array would wait forever.
        assert_eq!(job.end(137), ("scontrol requeue 7_2\n".to_owned(), 137), "{script}");
        assert_eq!(Job::start(script, 1).begun().end(1), (String::new(), 1), "{script}: an error stays one");
    }
}

#[test]
fn a_preempted_job_gets_no_second_signal() {
    for script in ARRAYS.iter().chain(&SINGLE) {
        let job = Job::start(script, 1).begun();
        // Slurm sends it to the program too, which would end at once after a second one.
        job.script.signal(Signal::TERM);
        // Bash may lose the program's code where a signal meets its end. Slurm ignores the code of a preempted job.
        let (printed, code) = job.end(130);
        assert_eq!(printed, "", "{script}");
        assert_ne!(code, 0, "{script}");
    }
}

#[test]
fn a_worker_without_a_coordinator_comes_back_until_the_run_is_complete() {
    let job = Job::start("workers.sbatch", 1).begun();
    assert_eq!(job.end(75), ("scontrol requeue 7_2\n".to_owned(), 75));
    assert_eq!(Job::start("workers.sbatch", 0).result(), (String::new(), 0));
    let _ = routed().dipaco("status --complete").failed(1, &["is not complete"]);
    let _ = trained().dipaco("status --complete").succeeded();
}

#[test]
fn a_coordinator_beside_another_command_on_its_run_comes_back() {
    let job = Job::start("coordinator.sbatch", 1).begun();
    assert_eq!(job.end(75), ("scontrol requeue 7\n".to_owned(), 75));
    assert_eq!(Job::start("coordinator.sbatch", 1).begun().end(3), (String::new(), 3));
}

#[test]
fn other_users_can_not_read_the_folders_of_the_services() {
    let mut found = 0;
    for entry in fs::read_dir(root().join("deploy/systemd")).unwrap() {
        let file = entry.unwrap().path();
        let unit = fs::read_to_string(&file).unwrap();
        for folder in ["StateDirectory", "CacheDirectory"] {
            if unit.contains(&format!("\n{folder}=")) {
                assert!(unit.contains(&format!("\n{folder}Mode=0750\n")), "{}: {folder}", file.display());
                found += 1;
            }
        }
    }
    assert_eq!(found, 4);
}

#[test]
fn a_coordinator_takes_a_free_port_and_says_which() {
    let run = routed().copy();
    let mut process = run.coordinator("--listen 127.0.0.1:0 --advertise localhost:0");
    let line = process.line_with("listening for workers");
    let port = field(&line, "address").strip_prefix("127.0.0.1:").unwrap();
    let token = JoinToken::read_from(&run.file("secrets/join.token")).unwrap();
    assert_eq!(token.addresses, [format!("localhost:{port}")]);
}

#[test]
fn the_exit_codes_of_the_page_are_those_of_the_help() {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let table = page.split("## Exit codes").nth(1).unwrap().split("\n## ").next().unwrap();
    let codes = |text: &str, separator: &[char]| {
        text.split(separator).filter_map(|word| word.trim().parse::<u8>().ok()).collect::<BTreeSet<_>>()
    };
    let help = dipaco("--help").succeeded().stdout;
    let help = help.split("Exit codes:").nth(1).unwrap().split("Data goes").next().unwrap();
    assert_eq!(codes(table, &['|']), codes(help, &[' ', '\n']));
}

#[test]
fn the_page_goes_from_empty_machines_to_a_served_model_in_twenty_lines_with_options_that_exist() {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let section = page.split("## From three empty machines to a served model").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    // As scripts/three-machines.py reads them.
    let lines: Vec<(&str, &str)> = section.lines().filter_map(|line| line.split_once("$ ")).collect();
    let machines: BTreeSet<&str> = lines.iter().map(|(machine, _)| *machine).collect();
    assert_eq!(machines, BTreeSet::from(["front", "lead", "worker"]));
    assert!(lines.len() <= 20, "{} lines", lines.len());
    let mut commands = Vec::new();
    for (_, line) in lines {
        let Some(call) = line.strip_prefix("dipaco ") else { continue };
        let words: Vec<&str> = call.split_whitespace().collect();
        has_options(&words);
        commands.push(words[0]);
    }
    assert_eq!(commands, ["prepare", "seed", "route", "route", "token", "worker", "coordinator", "serve"]);
}

#[test]
fn datatrove_prepares_and_routes_to_the_same_shards() {
    let Some(python) = interpreter("datatrove") else { return };
    let run = Run::new();
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = clean(Command::new(python), [root().join("deploy/datatrove/corpus.py")]);
    command.arg("--run").arg(run.directory()).args(["--tasks", "2"]).args(corpus());
    command.env("PATH", path).env("DIPACO_CONFIG", run.config()).env("PYTHONDONTWRITEBYTECODE", "1");
    let _ = output(command).succeeded();
    for file in ["routing/train/shards.json", "routing/validation/shards.json"] {
        assert_eq!(fs::read(run.file(file)).unwrap(), fs::read(routed().file(file)).unwrap(), "{file}");
    }
    assert!(run.file("datatrove/assign/completions/00001").exists(), "the parts were tasks of datatrove");
}

#[test]
fn prepare_reads_what_datatrove_writes() {
    let folder = tempfile::tempdir().unwrap();
    let args = [pages(), folder.path().to_owned()];
    let args = [args[0].to_str().unwrap(), args[1].to_str().unwrap()];
    let Some(written) = python("datatrove", "datatrove_text.py", &args) else { return };
    let mut texts = BTreeSet::new();
    for form in ["jsonl-gz", "jsonl-zst", "parquet"] {
        let report = Run::new().prepare(["--json".into(), folder.path().join(form)]).succeeded().json();
        let sum = |what: &str| {
            report["train"][what].as_u64().unwrap() + report["validation"][what].as_u64().unwrap()
        };
        assert_eq!(report["files"].as_array().unwrap().len(), 2, "{form}: both tasks: {report}");
        assert_eq!(sum("documents"), written["documents"].as_u64().unwrap(), "{form}: {report}");
        assert_eq!(sum("text_bytes"), written["bytes"].as_u64().unwrap(), "{form}: {report}");
        let _ = texts.insert(report["train"]["content_hash"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts.len(), 1, "the same tokens, whatever the form");
}
