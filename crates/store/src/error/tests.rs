use super::*;

#[derive(Debug, thiserror::Error)]
#[error("unable to copy data to file")]
struct Wrapped(#[source] io::Error);

fn from_os(code: i32) -> StoreError {
    let source = Box::new(Wrapped(io::Error::from_raw_os_error(code)));
    StoreError::io(
        "write",
        "modules/0/0/1",
        "/run",
        object_store::Error::Generic { store: "LocalFileSystem", source },
    )
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_and_a_full_quota_are_told_as_such() {
    for code in [28, 122] {
        let error = from_os(code);
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        assert!(error.to_string().contains("no space left in /run while writing `modules/0/0/1`"));
    }
    assert!(matches!(from_os(5), StoreError::Io { .. }));
}

#[test]
#[cfg(target_os = "linux")]
fn missing_rights_and_a_read_only_file_system_differ_from_failures_that_pass() {
    for code in [1, 13, 30] {
        assert!(from_os(code).is_denied(), "{:?}", from_os(code));
    }
    for code in [5, 20, 28, 122] {
        assert!(!from_os(code).is_denied(), "{:?}", from_os(code));
    }
    let directory = |code| StoreError::Directory {
        address: "/run".to_owned(),
        source: io::Error::from_raw_os_error(code),
    };
    assert!(directory(13).is_denied() && !directory(20).is_denied() && !directory(13).may_pass());
    let remote = |source| StoreError::remote("write", "readers/1", "s3://run", source);
    let (path, why) = ("readers/1".to_owned(), "no".into());
    assert!(remote(object_store::Error::PermissionDenied { path, source: why }).is_denied());
    assert!(!remote(object_store::Error::Generic { store: "S3", source: "slow down".into() }).is_denied());
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_too_large_and_a_name_that_is_too_long_stay_so() {
    let too_large = from_os(27);
    assert!(matches!(&too_large, StoreError::Io { .. }) && !too_large.may_pass(), "{too_large:?}");
    let long_name = from_os(36);
    assert!(matches!(&long_name, StoreError::Io { .. }) && !long_name.may_pass(), "{long_name:?}");
    for code in [5, 28, 122] {
        assert!(from_os(code).may_pass());
    }
}

#[test]
fn an_object_that_is_not_whole_does_not_take_a_complete_training_back() {
    let (object, store) = ("modules/0/0/1".to_owned(), "/run".to_owned());
    let errors = [
        StoreError::Missing { object: object.clone(), store: store.clone() },
        StoreError::Cut { object: object.clone(), store: store.clone(), expected: 8, found: 7 },
        StoreError::Damaged {
            object,
            store,
            expected: "a".to_owned(),
            expected_bytes: 8,
            found: "b".to_owned(),
            found_bytes: 8,
        },
    ];
    for error in errors {
        let said = error.to_string();
        assert!(
            said.contains("restore it from a copy") && said.contains("unless the training is complete"),
            "{said}"
        );
    }
}
