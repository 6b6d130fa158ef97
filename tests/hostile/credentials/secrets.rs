//! Secrets come from the environment, files and profiles: never from a command line, which every
//! user of the machine can read.

use std::os::unix::fs::PermissionsExt;

use super::SECRET;
use crate::common::moto::plain;
use crate::common::origin::Origin;
use crate::common::{Mount, project, read_files, run};

#[test]
fn secrets_on_the_command_line_are_refused_and_not_repeated() {
    let mount = Mount::prepare();
    let place = mount.path().display().to_string();
    let variables = [
        ("secret-access-key", "ICECHUNKFS_SECRET_ACCESS_KEY"),
        ("session-token", "ICECHUNKFS_SESSION_TOKEN"),
        ("account-key", "ICECHUNKFS_ACCOUNT_KEY"),
        ("sas-token", "ICECHUNKFS_SAS_TOKEN"),
        ("header", "ICECHUNKFS_HEADER"),
        ("password", "ICECHUNKFS_PASSWORD"),
    ];
    for (name, variable) in variables {
        let option = name.replace('-', "_");
        let flag = format!("--{name}");
        let words: Vec<Vec<String>> = vec![
            vec![flag.clone(), SECRET.into()],
            vec![format!("{flag}={SECRET}")],
            vec!["-o".into(), format!("{option}={SECRET}")],
            vec!["-o".into(), format!("{name}={SECRET}")],
            vec![format!("-o{option}={SECRET}")],
            vec![format!("-o={option}={SECRET}")],
            vec![format!("-vo{option}={SECRET}")],
            vec!["-vo".into(), format!("{option}={SECRET}")],
            vec!["-o".into(), format!("ro,tag=a\\,b,{option}={SECRET}")],
            vec!["-o".into(), format!("sloppy,{option}={SECRET}")],
            vec!["-o".into(), format!("virtual_option=s3://b\\,{option}={SECRET}")],
            vec!["--virtual-option".into(), format!("s3://b,{option}={SECRET}")],
            vec![format!("--virtual-option=s3://b,{name}={SECRET}")],
        ];
        for words in words {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = run(&mut plain(&[&["mount", "/nonexistent", &place], &words[..]].concat())).failure();
            assert!(output.contains("secret") && output.contains("--secrets"), "{words:?}: {output}");
            assert!(output.contains(variable) || output.contains("ICECHUNKFS_VIRTUAL_OPTION"), "{words:?}: {output}");
            assert!(!output.contains(SECRET), "{output}");
        }
        let output = run(&mut plain(&["refs", "/nonexistent", &flag, SECRET])).failure();
        assert!(output.contains(variable) && !output.contains(SECRET), "{output}");
    }
}

#[test]
fn passwords_in_urls_are_refused_and_not_repeated() {
    let with_password = |rest: &str| format!("http://someone:{SECRET}@127.0.0.1:1{rest}");
    let url = with_password("/repo");
    let words: [&[&str]; 8] = [
        &["refs", "s3://bucket/x", "--endpoint-url", &url],
        &["refs", "gs://bucket/x", "--endpoint-url", &url],
        &["refs", "az://bucket/x", "--account", "abc", "--endpoint-url", &url],
        &["refs", &url],
        &["cat", "/nonexistent", "x", "--virtual-option", &format!("s3://b,endpoint_url={url}")],
        &["cat", "/nonexistent", "x", "--allow-virtual", &url],
        &["cat", "/nonexistent", "x", "--virtual-map", &format!("s3://b={url}")],
        &["mount", "s3://b/x", "/nonexistent", "-o", &format!("endpoint_url={url}")],
    ];
    for words in words {
        let output = run(&mut plain(words)).failure();
        assert!(!output.contains(SECRET), "{words:?}: {output}");
        assert!(output.contains("password"), "{words:?}: {output}");
    }
    let variables = [
        ("s3://bucket/x", "ICECHUNKFS_ENDPOINT_URL"),
        ("s3://bucket/x", "AWS_ENDPOINT_URL"),
        ("s3://bucket/x", "AWS_ENDPOINT_URL_S3"),
        ("gs://bucket/x", "STORAGE_EMULATOR_HOST"),
        ("gs://bucket/x", "GOOGLE_BASE_URL"),
        ("az://bucket/x", "AZURE_STORAGE_ENDPOINT"),
    ];
    for (place, variable) in variables {
        let mut command = plain(&["refs", place]);
        command.env(variable, &url).env("ICECHUNKFS_TIMEOUT", "1").env("AWS_ACCESS_KEY_ID", "x");
        command
            .env("AWS_SECRET_ACCESS_KEY", "y")
            .env("AZURE_STORAGE_ACCOUNT_NAME", "abc")
            .env("AWS_REGION", "us-east-1");
        let output = run(&mut command).failure();
        assert!(!output.contains(SECRET) && !output.contains("someone"), "{variable}: {output}");
    }
    for wrong in [
        format!("http://someone:{SECRET}@"),
        format!("someone:{SECRET}@host"),
        format!("http:/someone:{SECRET}@host/x y"),
    ] {
        let output = run(&mut plain(&["refs", "s3://b/x", "--endpoint-url", &wrong])).failure();
        assert!(!output.contains(SECRET), "{output}");
    }
}

/// The daemon's command line and environment are visible to every user: they never contained a
/// secret.
#[test]
fn secrets_of_the_environment_and_of_files_are_never_shown() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secrets");
    std::fs::write(&file, format!("# the lab's server\nheader = x-token: {SECRET}\npassword={SECRET}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    for by_file in [true, false] {
        let mount = Mount::prepare();
        let url = format!("http://someone@127.0.0.1:{}/own-v2-basic", server.port);
        let option = format!("secrets={}", file.display());
        let mut command = plain(&mount.arguments(&url, &["-vv"]));
        if by_file {
            command.args(["-o", &option]);
        } else {
            command.env("ICECHUNKFS_HEADER", format!("x-token: {SECRET}")).env("ICECHUNKFS_PASSWORD", SECRET);
        }
        run(&mut command).success();
        assert!(read_files(&mount.path()).len() > 10);
        let asked = server.take();
        // someone:nobody-may-see-this
        let basic = "authorization: basic c29tzw9uztpub2jvzhktbwf5lxnlzs10aglz";
        assert!(asked.iter().all(|seen| seen.headers.contains(SECRET) && seen.headers.contains(basic)), "{asked:?}");
        let daemon = mount.daemon();
        let words = std::fs::read(format!("/proc/{daemon}/cmdline")).unwrap();
        let shown = [
            String::from_utf8_lossy(&words).into_owned(),
            std::fs::read_to_string("/proc/mounts").unwrap(),
            mount.log(),
        ];
        for text in shown {
            assert!(!text.contains(SECRET), "{text}");
        }
        mount.unmount();
    }
}

#[test]
fn a_secrets_file_that_others_may_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secrets");
    let refs = |text: &str, mode: u32| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let output =
            run(&mut plain(&["refs", "http://127.0.0.1:1/x", "--timeout", "1", "--secrets", file.to_str().unwrap()]))
                .failure();
        assert!(!output.contains(SECRET), "{output}");
        output
    };
    let good = format!("session-token = {SECRET}\nheader=a: {SECRET}\nheader=b: {SECRET}\n");
    assert!(refs(&good, 0o600).contains("refuses connections"));
    for mode in [0o644, 0o640, 0o604, 0o620, 0o666] {
        let output = refs(&good, mode);
        assert!(output.contains("chmod 600"), "{output}");
    }
    for wrong in [
        format!("{SECRET}\n"),
        format!("region={SECRET}\n"),
        format!("unknown={SECRET}\n"),
        format!("header={SECRET}\n"),
    ] {
        let output = refs(&wrong, 0o600);
        assert!(output.contains("line 1") || output.contains("NAME: VALUE"), "{output}");
    }
    let output = run(&mut plain(&["refs", "http://127.0.0.1:1/x", "--secrets", "/nonexistent/file"])).failure();
    assert!(output.contains("/nonexistent/file"), "{output}");
}

/// A store of virtual chunks has its own secrets: in the environment, or in a file that an option
/// names.
#[test]
fn virtual_options_take_secrets_from_the_environment_and_from_files() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(project("tests/fixtures/repos").join("own-v2-basic/repo")).unwrap();
    let location = server.url("own-v2-basic/repo");
    let repository = crate::common::made::repository(
        &directory.path().join("repo"),
        Vec::new(),
        &[crate::common::made::reference(location, 0, 10)],
    );
    let file = directory.path().join("secrets");
    std::fs::write(&file, format!("header=x-token: {SECRET}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let prefix = server.url("");
    let cat = || plain(&["cat", repository.to_str().unwrap(), "v/c/0", "--allow-virtual", &prefix]);
    let by_file = format!("{prefix},secrets={}", file.display());
    let mut commands = [cat(), cat(), cat()];
    commands[0].args(["--virtual-option", &by_file]);
    commands[1].env("ICECHUNKFS_VIRTUAL_OPTION", format!("{prefix},header=x-token: {SECRET}"));
    // An option on the command line keeps other settings of the environment.
    commands[2].env("ICECHUNKFS_VIRTUAL_OPTION", format!("{prefix},header=x-token: {SECRET}"));
    commands[2].args(["--virtual-option", &format!("{prefix},timeout=5")]);
    for command in &mut commands {
        assert_eq!(run(command).success(), bytes[..10]);
        let asked = server.take();
        assert!(!asked.is_empty() && asked.iter().all(|seen| seen.headers.contains(SECRET)), "{asked:?}");
    }
}
