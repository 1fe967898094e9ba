use super::*;

/// Writes small files with these names.
fn folder_with(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "text").unwrap();
    }
    folder
}

/// Names of the listed files, without their folders.
fn file_names(list: &InputList) -> Vec<String> {
    let name = |file: &InputFile| file.path.file_name().unwrap().to_str().unwrap().to_owned();
    list.files.iter().map(name).collect()
}

#[test]
fn a_folder_or_file_with_several_names_is_listed_once() {
    let folder = folder_with(&["dup/a.txt", "dup/b.txt", "dup/.hidden"]);
    let dup = folder.path().join("dup");
    let inputs = [dup.clone(), dup.join("../dup"), dup.join("a.txt"), dup.join("../dup/a.txt")];
    let list = list_inputs(&inputs).unwrap();
    assert_eq!(file_names(&list), ["a.txt", "b.txt"]);
    assert_eq!(list.skipped, BTreeMap::from([(Skipped::Hidden, 1)]));
    let reversed: Vec<PathBuf> = inputs.into_iter().rev().collect();
    assert_eq!(list_inputs(&reversed).unwrap(), list);
}

#[cfg(unix)]
#[test]
fn a_file_has_the_format_of_its_links_name() {
    let folder = folder_with(&["blobs/0f3a", "snapshot/own.txt"]);
    let link = folder.path().join("snapshot/train.jsonl");
    std::os::unix::fs::symlink("../blobs/0f3a", &link).unwrap();
    let list = list_inputs(&[folder.path().to_owned()]).unwrap();
    assert_eq!(file_names(&list), ["own.txt", "train.jsonl"]);
    assert!(list.files.iter().all(|file| file.has_fields() == (file.path == link)));
}

// Other systems have no such names for open files.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_or_device_is_refused_by_name() {
    use std::os::fd::AsRawFd;

    let (reader, writer) = std::io::pipe().unwrap();
    drop(writer);
    let pipe = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
    let folder = folder_with(&["a.txt"]);
    let link = folder.path().join("link.txt");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for input in [pipe, link] {
        let message = list_inputs(&[folder.path().join("a.txt"), input.clone()]).unwrap_err().to_string();
        let wanted = [input.to_str().unwrap(), "write the text to a file first"];
        assert!(wanted.iter().all(|words| message.contains(words)), "{message}");
    }
    // A link to a file is a file.
    let other = folder.path().join("other.txt");
    std::os::unix::fs::symlink(folder.path().join("a.txt"), &other).unwrap();
    assert_eq!(file_names(&list_inputs(&[other]).unwrap()), ["other.txt"]);
}

// Other systems refuse to make such a file.
#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_not_utf8_is_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = folder_with(&["a.txt"]);
    let file = folder.path().join(OsStr::from_bytes(b"caf\xE9.txt"));
    std::fs::write(&file, "text").unwrap();
    for input in [folder.path().to_owned(), file] {
        let message = list_inputs(&[input]).unwrap_err().to_string();
        assert!(message.contains("caf\u{FFFD}.txt") && message.contains("rename"), "{message}");
    }
}
