//! A server of Amazon's protocol for one test, and the program connected to it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::writing::{array, needed, put, touch};
use crate::common::{Mount, Output, program, run, watchdog};

pub const BUCKET: &str = "icechunkfs-test";
pub const SECRET: &str = "nobody-may-see-this";

/// A server that ends with the test.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn start(mut command: Command, port: u16) -> Server {
    watchdog();
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("server starts");
    let server = Server { child, port };
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts moto with an empty bucket. Without moto a message says that the test was skipped.
pub fn s3() -> Option<Server> {
    let moto = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/moto_server");
    if !needed(moto.exists(), &format!("{}: scripts/setup --python makes it", moto.display())) {
        return None;
    }
    let port = free_port();
    let mut command = Command::new(moto);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let server = start(command, port);
    request(port, "PUT", &format!("/{BUCKET}"), b"");
    Some(server)
}

/// Sends a plain request, which the server must carry out. Returns the answer's body.
pub fn request(port: u16, method: &str, target: &str, body: &[u8]) -> String {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (length, target) = (body.len(), target.replace('%', "%25").replace(' ', "%20"));
    write!(
        connection,
        "{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    connection.write_all(body).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Returns the program with credentials and an otherwise empty environment.
pub fn command(port: u16, words: &[&str]) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_") || name.starts_with("ICECHUNKFS_")) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").env("AWS_ACCESS_KEY_ID", "tester").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("AWS_REGION", "us-east-1").env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"));
    command.args(words);
    command
}

pub fn icechunkfs(port: u16, words: &[&str]) -> Output {
    run(&mut command(port, words))
}

pub fn repository(name: &str) -> String {
    format!("s3://{BUCKET}/{name}")
}

/// Mounts `repo` over the server at `port`.
pub fn mount(port: u16, repo: &str, words: &[&str]) -> Mount {
    let mount = Mount::prepare();
    let place = mount.path().display().to_string();
    let log = mount.path().with_file_name("log").display().to_string();
    let words = [&["mount", repo, &place, "--log-file", &log], words].concat();
    icechunkfs(port, &words).success();
    mount
}

/// Creates a repository with an array of 40 chunks of different sizes.
pub fn made(port: u16, name: &str) -> String {
    let repo = repository(name);
    icechunkfs(port, &["init", &repo, "--zarr-group"]).success();
    let mount = mount(port, &repo, &["--ephemeral"]);
    fill(&mount.path(), 0);
    commit(&mount).unwrap();
    mount.unmount();
    repo
}

pub fn fill(root: &Path, salt: u8) {
    put(&root.join("a/zarr.json"), array(&[40], &[1])).unwrap();
    for n in 0..40_usize {
        let length = [100, 5_000, 300_000, 1_000_000][n % 4];
        let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8 ^ n as u8 ^ salt).collect();
        put(&root.join(format!("a/c/{n}")), bytes).unwrap();
    }
}

pub fn commit(mount: &Mount) -> std::io::Result<()> {
    touch(&mount.path().join(".icechunk/commit"))
}

pub fn commits(port: u16, repo: &str) -> usize {
    icechunkfs(port, &["log", repo, "--json"]).json().as_array().unwrap().len()
}
