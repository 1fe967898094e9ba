//! Synchronizers with rights that end: temporary credentials that open the objects of their modules and the states of paths.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dipaco_tests::file_server::FileServer;
use dipaco_tests::object_store::{BUCKET, Fault, FaultyProxy, ObjectStore, Seen, environment};
use dipaco_tests::process::{Process, Signal, command, output};
use dipaco_tests::training::{undisturbed, untrained};

/// The session token of a request: of its head, or of the link that it uses.
fn session(seen: &Seen) -> Option<String> {
    let head = seen.head.lines().find_map(|line| line.strip_prefix("x-amz-security-token:"));
    let link = seen.line.split(['?', '&']).find_map(|part| part.strip_prefix("X-Amz-Security-Token="));
    head.or(link).map(|token| token.trim().to_owned())
}

/// The rights that `docs/deploy.md` gives a synchronizer of level 0 in the bucket's folder `run`.
fn permitted(seen: &Seen) -> bool {
    let (method, target) = seen.line.split_once(' ').unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let within =
        |kinds: &[&str]| kinds.iter().any(|kind| path.starts_with(&format!("/{BUCKET}/run/{kind}/")));
    let own = ["modules/0", "momenta/0", "changes/0", "outer-gradients/0"];
    match method {
        "GET" if path.trim_end_matches('/') == format!("/{BUCKET}") => {
            ["manifest", "probes"].iter().any(|kind| query.contains(&format!("prefix=run%2F{kind}%2F")))
        }
        "GET" | "HEAD" => within(&own) || within(&["manifest", "probes"]),
        "PUT" => within(&own) || within(&["paths", "probes"]),
        "DELETE" => within(&["probes"]),
        _ => false,
    }
}

#[test]
fn a_synchronizer_needs_temporary_credentials_for_the_objects_of_its_modules_only() {
    let Some(server) = ObjectStore::start() else { return };
    let run = untrained().with_environment(environment(&server.address));
    std::fs::remove_dir_all(run.file("store")).unwrap();
    let _ = run.dipaco(&format!("seed --set run.store=s3://{BUCKET}/run")).succeeded();

    // Credentials as a machine's agent gives them. These have ended already, so the next request needs new ones.
    let agent = run.folder().join("agent");
    std::fs::create_dir(&agent).unwrap();
    let ended = r#"{"AccessKeyId": "temporary", "SecretAccessKey": "hush-hush", "Token": "session-of-0",
        "Expiration": "2026-01-01T00:00:00Z"}"#;
    std::fs::write(agent.join("credentials"), ended).unwrap();
    let authorization = run.folder().join("authorization");
    std::fs::write(&authorization, "the machine's own").unwrap();
    let credentials = FileServer::start(agent);

    let refused: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let log = refused.clone();
    let store = FaultyProxy::before(&server, move |seen| {
        if permitted(seen) && session(seen).as_deref() == Some("session-of-0") {
            return Fault::None;
        }
        eprintln!("refused: {seen:?}");
        log.lock().unwrap().push(seen.clone());
        Fault::Refuse(403)
    });
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let mut synchronizer = run.command("synchronizer -v --json --modules 0 --name 0");
    synchronizer.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    synchronizer.env("AWS_ENDPOINT_URL", format!("http://{}", store.address));
    synchronizer
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/credentials", credentials.address));
    synchronizer.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &authorization);
    // One request for each deletion, whose name the rules above can see.
    synchronizer.env("AWS_DISABLE_BULK_DELETE", "true");
    let mut synchronizer = Process::start(synchronizer);
    synchronizer.line_with("listening for workers");
    coordinator.line_with("takes the outer steps of these modules");
    let worker = run.worker("a");
    let _ = coordinator.finish().succeeded();
    let summary = synchronizer.finish().succeeded().json();
    worker.signal(Signal::INT);
    let _ = worker.finish();

    assert!(refused.lock().unwrap().is_empty(), "{:?}", refused.lock().unwrap());
    // Two modules take three outer steps each.
    assert_eq!(summary["outer_steps"], 6, "{summary}");
    assert_eq!(run.bits(), undisturbed());
    // Momenta are read by a synchronizer that begins in the middle of a run only.
    let used: BTreeSet<String> = store.seen().iter().filter_map(kind).collect();
    for kind in
        ["GET manifest", "GET modules", "PUT modules", "PUT momenta", "PUT outer-gradients", "PUT paths"]
    {
        assert!(used.contains(kind), "{kind}: {used:?}");
    }
    assert!(
        credentials.asked().len() > 10,
        "the credentials were asked for again: {:?}",
        credentials.asked()
    );
}

/// Method and first folder of a request for an object.
fn kind(seen: &Seen) -> Option<String> {
    let (method, target) = seen.line.split_once(' ')?;
    let name = target.strip_prefix(&format!("/{BUCKET}/run/"))?;
    Some(format!("{method} {}", name.split('/').next()?))
}

#[test]
fn a_session_token_of_the_environment_reaches_every_request() {
    let Some(server) = ObjectStore::start() else { return };
    let store = FaultyProxy::before(&server, |_| Fault::None);
    let mut doctor = command(["doctor", "--store", &format!("s3://{BUCKET}/run")]);
    doctor.envs(environment(&store.address)).env("AWS_SESSION_TOKEN", "session-of-1");
    let _ = output(doctor).succeeded();
    let seen = store.seen();
    assert!(seen.len() > 3, "{seen:?}");
    for request in seen {
        assert_eq!(session(&request).as_deref(), Some("session-of-1"), "{request:?}");
    }
}
