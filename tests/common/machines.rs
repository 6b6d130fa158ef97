//! Machines on one network: network namespaces with a bridge between them. One has the store.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::faulty::Line;
use crate::common::moto::{self, Server};
use crate::common::writing::needed;
use crate::common::{Mount, Output, is_root, run};

/// Address of the machine with the store; the addresses of the others begin with the same numbers.
const STORE: &str = "10.77.0.1";
const OTHERS: &str = "10.77.0.";

fn ip(words: &str) -> Output {
    run(Command::new("ip").args(words.split(' ')))
}

/// A machine on the network; it is removed when it is dropped.
pub struct Machine {
    name: String,
}

impl Machine {
    /// Returns a name that no other machine has, also of tests that run at the same time.
    fn name() -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        format!("icechunkfs-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    fn new() -> Machine {
        let name = Machine::name();
        ip(&format!("netns add {name}")).success();
        let machine = Machine { name };
        ip(&format!("-n {} link set lo up", machine.name)).success();
        machine
    }

    /// Does `work` on this machine, with the threads and processes that it starts; all machines
    /// share their files.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let place = File::open(Path::new("/run/netns").join(&self.name)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // SAFETY: the descriptor is open; the call affects this thread only, which ends
                // here.
                assert_eq!(unsafe { libc::setns(place.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Machines around one store. Their mounts have to be dropped before them.
pub struct Network {
    machines: Vec<Machine>,
    /// The proxy through which they reach the store.
    line: Option<Line>,
    server: Option<Server>,
    store: Machine,
}

impl Network {
    /// Creates `count` machines. Where that is not possible, the test reports that it was skipped.
    pub fn of(count: usize) -> Option<Network> {
        let probe = Machine::name();
        let works = is_root() && Command::new("ip").args(["netns", "add", &probe]).status().is_ok_and(|s| s.success());
        if !needed(works, "root and `ip netns` (the package iproute2): scripts/setup installs it") {
            return None;
        }
        ip(&format!("netns del {probe}")).success();
        let store = Machine::new();
        let at = |words: &str| ip(&format!("-n {} {words}", store.name)).success();
        at("link add bridge type bridge");
        at(&format!("addr add {STORE}/24 dev bridge"));
        at("link set bridge up");
        let mut machines = Vec::new();
        for n in 0..count {
            let machine = Machine::new();
            at(&format!("link add port{n} type veth peer name eth0 netns {}", machine.name));
            at(&format!("link set port{n} master bridge up"));
            ip(&format!("-n {} addr add {OTHERS}{}/24 dev eth0", machine.name, 10 + n)).success();
            ip(&format!("-n {} link set eth0 up", machine.name)).success();
            machines.push(machine);
        }
        let server = store.run(moto::s3)?;
        let port = server.port;
        let line = store.run(move || Line::at(STORE, port));
        Some(Network { machines, line: Some(line), server: Some(server), store })
    }

    pub fn line(&self) -> &Line {
        self.line.as_ref().unwrap()
    }

    /// Does `work` on machine `n`.
    pub fn on<T: Send>(&self, n: usize, work: impl FnOnce() -> T + Send) -> T {
        self.machines[n].run(work)
    }

    /// Does `work` where the store is; `work` gets the port without faults.
    pub fn at_store<T: Send>(&self, work: impl FnOnce(u16) -> T + Send) -> T {
        let port = self.server.as_ref().unwrap().port;
        self.store.run(move || work(port))
    }

    /// Connects or disconnects machine `n`.
    pub fn plug(&self, n: usize, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        ip(&format!("-n {} link set port{n} {state}", self.store.name)).success();
    }

    /// Mounts `repo` on machine `n`, with a scratch directory of its own.
    pub fn mount(&self, n: usize, repo: &str, words: &[&str]) -> Mount {
        let mount = Mount::prepare();
        let scratch = mount.path().with_file_name("scratch").display().to_string();
        let all = mount.arguments(repo, &[&["--scratch", &scratch], words].concat());
        let mut command = moto::command(self.line().port, &all);
        command.env("AWS_ENDPOINT_URL", format!("http://{STORE}:{}", self.line().port));
        self.on(n, || run(&mut command).success());
        mount
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The address is reached from within the machine, since the server listens there.
        let line = self.line.take();
        self.store.run(move || drop(line));
        drop(self.server.take());
    }
}
