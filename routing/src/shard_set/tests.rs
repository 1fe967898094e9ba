use super::*;

#[test]
fn a_missing_manifest_names_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let message = ShardSet::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("shards.json") && message.contains("route assign"), "{message}");
}

#[test]
fn other_formats_and_versions_are_named() {
    for (json, named) in [
        (r#"{"format":"x","version":1}"#, "\"x\""),
        (r#"{"format":"dipaco-shard-set","version":2}"#, "version 2"),
        (r#"{"format":"dipaco-shard-set","version":3}"#, "router_hash"),
        ("[1", "can't be read"),
    ] {
        let message = decode(json.as_bytes()).unwrap_err();
        assert!(message.contains(named), "{message}");
    }
}
