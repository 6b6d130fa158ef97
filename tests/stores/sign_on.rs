//! Profiles that take on a role or sign on with IAM Identity Center: the keys that a server gives
//! out sign the requests, and are renewed in a running mount.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::listener::{Listener, read_head};
use crate::common::moto::{made, plain, s3};
use crate::common::{Mount, run};

/// Services that give out keys: `ROLE<n>` for a role, `SSO<n>` for a sign-on, each valid for a
/// little longer than it takes until renewal.
struct Keys {
    listener: Listener,
    heads: Arc<Mutex<Vec<String>>>,
}

/// Time for which keys are valid, in seconds: icechunkfs renews them 300 s before their expiry.
const VALID: u64 = 305;

fn epoch() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

impl Keys {
    fn start() -> Keys {
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&heads);
        let given = AtomicUsize::new(0);
        let listener = Listener::start("127.0.0.1:0", move |mut client| {
            while let Ok(Some((head, _))) = read_head(&mut client) {
                let number = given.fetch_add(1, Ordering::Relaxed);
                let expires = epoch() + VALID;
                let answer = if head.contains("/federation/credentials") {
                    format!(
                        r#"{{"roleCredentials":{{"accessKeyId":"SSO{number}","secretAccessKey":"s","sessionToken":"t","expiration":{}}}}}"#,
                        expires * 1000
                    )
                } else {
                    let time = icechunkfs::times::format_time(expires * 1_000_000).replace("+00:00", "Z");
                    format!(
                        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
                             <AccessKeyId>ROLE{number}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
                             <Expiration>{time}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
                    )
                };
                seen.lock().unwrap().push(head);
                if reply(&mut client, &answer).is_err() {
                    break;
                }
            }
        });
        Keys { listener, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn reply(client: &mut TcpStream, body: &str) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Returns the key that signed a request.
fn signer(head: &str) -> Option<String> {
    let (_, rest) = head.split_once("Credential=")?;
    Some(rest.split_once('/')?.0.to_owned())
}

/// A way to the server at `port` on which the keys that sign requests are recorded.
struct Watched {
    listener: Listener,
    signers: Arc<Mutex<Vec<String>>>,
}

impl Watched {
    fn to(port: u16) -> Watched {
        let signers: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&signers);
        let listener = Listener::start("127.0.0.1:0", move |mut client| {
            let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut answers = server.try_clone().unwrap();
            let mut back = client.try_clone().unwrap();
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Both);
            });
            let mut buffer = [0; 1 << 16];
            // The head of a request comes in one piece.
            while let Ok(count @ 1..) = client.read(&mut buffer) {
                seen.lock().unwrap().extend(signer(&String::from_utf8_lossy(&buffer[..count])));
                if server.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = server.shutdown(std::net::Shutdown::Both);
        });
        Watched { listener, signers }
    }

    fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Returns the keys of the requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.signers.lock().unwrap())
    }
}

/// Completes a command of the program with profile `name` of the files in `home`.
fn with_profile(mut command: Command, home: &Path, name: &str, store: u16, keys: &Keys) -> Command {
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    command.env("HOME", home).env("AWS_PROFILE", name).env("AWS_ENDPOINT_URL_S3", at(store));
    command.env("AWS_ENDPOINT_URL_STS", at(keys.listener.port())).env("AWS_ENDPOINT_URL_SSO", at(keys.listener.port()));
    command
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).unwrap();
    let config = "\
[profile base]
region = eu-west-1
[profile reader]
role_arn = arn:aws:iam::123456789012:role/reader
source_profile = base
region = eu-west-1
[profile chain]
role_arn = arn:aws:iam::123456789012:role/second
source_profile = reader
region = eu-west-1
[profile person]
sso_session = work
sso_account_id = 123456789012
sso_role_name = reader
region = eu-west-1
[profile late]
sso_start_url = https://late.example/start
sso_region = eu-west-1
sso_account_id = 123456789012
sso_role_name = reader
region = eu-west-1
[profile hostile]
role_arn = arn:aws:iam::123456789012:role/reader
source_profile = base
region = evil.example/#
[sso-session work]
sso_region = eu-west-1
sso_start_url = https://work.example/start
";
    std::fs::write(home.path().join(".aws/config"), config).unwrap();
    let keys = "[base]\naws_access_key_id = BASE\naws_secret_access_key = secret\n";
    std::fs::write(home.path().join(".aws/credentials"), keys).unwrap();
    let token = serde_json::json!({
        "accessToken": "a token", "expiresAt": "2100-01-01T00:00:00Z", "region": "eu-west-1", "startUrl": "https://work.example/start",
    });
    // As `aws sso login` names it: the SHA-1 of `work`.
    std::fs::write(cache.join(format!("{}.json", sha1("work"))), token.to_string()).unwrap();
    home
}

fn sha1(text: &str) -> String {
    let mut command = Command::new("sh");
    let text = run(command.args(["-c", &format!("printf %s {text} | sha1sum")])).text();
    text.split(' ').next().unwrap().to_owned()
}

#[test]
fn roles_and_sign_ons_give_the_keys_that_sign() {
    let Some(server) = s3() else { return };
    let line = Watched::to(server.port);
    let keys = Keys::start();
    let home = home();
    let repo = made(server.port, "roles");
    let refs =
        |profile: &str| run(&mut with_profile(plain(&["refs", &repo]), home.path(), profile, line.port(), &keys));
    for (profile, given, asked) in [("reader", "ROLE", 1), ("chain", "ROLE", 2), ("person", "SSO", 1)] {
        let _ = line.take();
        let before = keys.heads().len();
        assert!(refs(profile).text().contains("main"), "{profile}");
        assert_eq!(keys.heads().len() - before, asked, "{profile}");
        let seen = line.take();
        assert!(!seen.is_empty() && seen.iter().all(|key| key.starts_with(given)), "{profile}: {seen:?}");
    }
    let heads = keys.heads();
    // A role is taken on with the keys of the profile before it in the chain.
    assert_eq!(signer(&heads[0]).as_deref(), Some("BASE"));
    assert_eq!(signer(&heads[2]).unwrap(), "ROLE1");
    assert!(heads[3].to_lowercase().contains("x-amz-sso_bearer_token: a token"), "{}", heads[3]);
    // Without a sign-on, the message says what to do; a region cannot name another host.
    let message = refs("late").failure();
    assert!(message.contains("aws sso login --profile late"), "{message}");
    let before = keys.heads().len();
    let message = refs("hostile").failure();
    assert!(message.contains("evil.example") && keys.heads().len() == before, "{message}");
}

#[test]
#[ignore = "waits for keys to expire: scripts/test --full"]
fn keys_that_expire_are_renewed_in_a_running_mount() {
    let Some(server) = s3() else { return };
    let line = Watched::to(server.port);
    let keys = Keys::start();
    let home = home();
    let repo = made(server.port, "renewal");
    let mount = Mount::prepare();
    let words = mount.arguments(&repo, &["--follow", "0.5"]);
    run(&mut with_profile(plain(&words), home.path(), "reader", line.port(), &keys)).success();
    let first = line.take().last().cloned().unwrap();
    // The mount looks at its branch all the time; keys are used for 10 s at least.
    std::thread::sleep(Duration::from_secs(13));
    let second = line.take().last().cloned().unwrap();
    assert!(first.starts_with("ROLE") && second.starts_with("ROLE") && first != second, "{first}, then {second}");
    assert!(mount.path().read_dir().is_ok() && !mount.log().contains("WARN"), "{}", mount.log());
}
