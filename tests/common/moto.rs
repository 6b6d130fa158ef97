//! A server of Amazon's protocol for one test, and the program connected to it.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::writing::{array, needed, put, touch};
use crate::common::{Mount, Output, program, project, read_files, run, wait_until, watchdog};

pub const BUCKET: &str = "icechunkfs-test";
pub const SECRET: &str = "nobody-may-see-this";

/// A server that ends with the test.
pub struct Server {
    child: Child,
    pub port: u16,
    _reservation: UdpSocket,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(mut command: Command, port: u16, reservation: UdpSocket) -> Server {
    watchdog();
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("server starts");
    let mut server = Server { child, port, _reservation: reservation };
    wait_until("the server does not answer", || {
        assert!(
            matches!(server.child.try_wait(), Ok(None)),
            "the server has ended: it could not listen at port {port}"
        );
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    server
}

/// Starts Python's own web server, which has no support for ranges.
pub fn python_server(directory: &Path) -> Server {
    let (port, reservation) = reserve_port();
    let mut command = Command::new("python3");
    command.arg("-B").arg(project("tests/python/web_server.py")).arg(port.to_string()).arg(directory);
    start(command, port, reservation)
}

/// Returns a port at which nobody listens, reserved by a socket of another protocol. The kernel
/// gives ports below 32768 to nobody who asks for any port, and two tests of any process cannot
/// have one reservation.
fn reserve_port() -> (u16, UdpSocket) {
    let start = 20_000 + std::process::id() as u16 % 10_000;
    let ports = (start..32_000).chain(20_000..start);
    let mut free = ports.filter_map(|port| {
        let reservation = UdpSocket::bind(("127.0.0.1", port)).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| (port, reservation))
    });
    free.next().unwrap()
}

/// Returns a port at which nobody listens as long as this process runs.
pub fn free_port() -> u16 {
    let (port, reservation) = reserve_port();
    std::mem::forget(reservation);
    port
}

/// Starts moto with an empty bucket. Without moto a message says that the test was skipped.
pub fn s3() -> Option<Server> {
    let moto = project("target/venv/bin/moto_server");
    if !needed(moto.exists(), &format!("{}: scripts/setup --python makes it", moto.display())) {
        return None;
    }
    let (port, reservation) = reserve_port();
    let mut command = Command::new(project("target/venv/bin/python"));
    command.arg("-B").arg(project("tests/python/moto_server.py")).args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let server = start(command, port, reservation);
    // The server accepts connections before all of it has started, and may reset the first ones.
    wait_until("the server makes no bucket", || {
        exchange(port, "PUT", &format!("/{BUCKET}"), b"").is_ok_and(|answer| answer.contains(" 200 "))
    });
    Some(server)
}

/// Sends a plain request, which the server must carry out. Returns the answer's body.
pub fn request(port: u16, method: &str, target: &str, body: &[u8]) -> String {
    let answer = exchange(port, method, target, body).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Removes an object, if there is one.
pub fn remove(port: u16, target: &str) {
    // The server takes any signature, and none only for what nobody owns.
    let scope = "tester/20260101/us-east-1/s3/aws4_request";
    let signed = format!("Authorization: AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=x\r\n");
    let answer = exchange_with(port, "DELETE", target, &signed, b"").unwrap();
    assert!(answer.contains(" 204 "), "{answer}");
}

/// Sends a plain request, and returns the whole answer.
fn exchange(port: u16, method: &str, target: &str, body: &[u8]) -> std::io::Result<String> {
    exchange_with(port, method, target, "", body)
}

/// Sends a plain request with more headers, each with its line's end.
fn exchange_with(port: u16, method: &str, target: &str, headers: &str, body: &[u8]) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    let length = body.len();
    let target = target.replace('%', "%25").replace(' ', "%20");
    write!(
        connection,
        "{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n"
    )?;
    connection.write_all(body)?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the program with a home and an environment that have nothing for it.
pub fn plain<S: AsRef<OsStr>>(words: &[S]) -> Command {
    let mut command = Command::new(program());
    let is_for_it = |name: &str| {
        let name = name.to_uppercase();
        ["AWS_", "ICECHUNKFS_", "AZURE_", "GOOGLE_", "STORAGE_"].iter().any(|begin| name.starts_with(begin))
            || name.ends_with("_PROXY")
    };
    for (name, _) in std::env::vars().filter(|(name, _)| is_for_it(name)) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").args(words);
    command
}

/// Returns the program with credentials and an otherwise empty environment.
pub fn command<S: AsRef<OsStr>>(port: u16, words: &[S]) -> Command {
    let mut command = plain(words);
    command.env("AWS_ACCESS_KEY_ID", "tester").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("AWS_REGION", "us-east-1").env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"));
    command
}

pub fn icechunkfs<S: AsRef<OsStr>>(port: u16, words: &[S]) -> Output {
    run(&mut command(port, words))
}

pub fn repository(name: &str) -> String {
    format!("s3://{BUCKET}/{name}")
}

/// Copies a directory into the bucket, as repository `name`.
pub fn upload(port: u16, directory: &Path, name: &str) -> String {
    for (key, bytes) in read_files(directory) {
        request(port, "PUT", &format!("/{BUCKET}/{name}/{key}"), &bytes);
    }
    repository(name)
}

/// Mounts `repo` over the server at `port`.
#[track_caller]
pub fn mount(port: u16, repo: &str, words: &[&str]) -> Mount {
    let (mount, output) = try_to_mount(port, repo, words);
    output.success();
    mount
}

/// Mounts as [`mount`], which may fail.
pub fn try_to_mount(port: u16, repo: &str, words: &[&str]) -> (Mount, Output) {
    let mount = Mount::prepare();
    let output = icechunkfs(port, &mount.arguments(repo, words));
    (mount, output)
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
    touch(&mount.control("commit"))
}

pub fn commits(port: u16, repo: &str) -> usize {
    icechunkfs(port, &["log", repo, "--json"]).json().as_array().unwrap().len()
}
