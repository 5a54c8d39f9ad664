//! Configurations that are refused, checked, and shown.

use super::*;

#[test]
fn a_bad_configuration_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, "[workers]\ncount = \"many\"\n");
    let output = ringmain().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let want = r#"workers.count: "many" is not a number; give 1 to 64 or "auto""#;
    assert_eq!(err(&output), format!("ringmain: {}:4: {want}\n", file.display()));

    let missing =
        ringmain().args(["serve", "--config", "/nowhere/ringmain.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        err(&missing).starts_with("ringmain: cannot read /nowhere/ringmain.toml: "),
        "{}",
        err(&missing)
    );
}

#[test]
fn a_configuration_can_be_checked_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, PORTS);
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(!dir.path().join("control.sock").exists());
}

#[test]
fn the_sample_configuration_is_right() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringmain.toml");
    let output = ringmain().args(["serve", "--check", "--config", sample]).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
}

/// A check finds out without a daemon what the host lacks.
#[test]
fn a_check_looks_at_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let check = |config: &str| {
        let file = configure(&dir, config);
        let output = ringmain().args(["serve", "--check", "--config"]).arg(file).output().unwrap();
        (output.status.code(), err(&output))
    };
    fs::write(dir.path().join("file"), "").unwrap();
    let two = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"DIR/file\"\n\
               [[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = \"DIR/file/b.sock\"\n";
    let (code, said) = check(two);
    assert_eq!((code, said.lines().count()), (Some(2), 2), "{said}");
    assert!(said.contains("port \"a\": ") && said.contains("is not a socket"), "{said}");
    assert!(said.contains("port \"b\": ") && said.contains("is not a directory"), "{said}");
    let (code, said) = check("[[port]]\nname = \"a\"\nkind = \"tap\"\ndevice = \"lo\"\n");
    assert_eq!(code, Some(2), "{said}");

    let empty = dir.path().join("empty.toml");
    fs::write(&empty, "# nothing\n\n").unwrap();
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&empty).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("the file has no keys"), "{}", err(&output));
    let latin = dir.path().join("latin.toml");
    fs::write(&latin, b"[workers]\n# gr\xfcn\n").unwrap();
    let output = ringmain().args(["serve", "--check", "--config"]).arg(&latin).output().unwrap();
    let want = format!("{}:2: not UTF-8; save the file as UTF-8 text\n", latin.display());
    assert_eq!(err(&output), format!("ringmain: {want}"));
}

#[test]
fn all_mistakes_are_printed_a_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = configure(&dir, "[workers]\ncount = 0\nthreads = 1\n");
    let output = ringmain().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let lines: Vec<String> = err(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with(&format!("ringmain: {}:", file.display()))));
}
