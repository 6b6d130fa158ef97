//! Sequences of what programs, other writers and the kernel do with a mount.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod commit;
mod resolve;
mod restart;
mod status;

use crate::lab::Lab;
use crate::lab::mount::{Branch, Mount, Opened};

/// Numbers that seem random, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % below
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = 1 + self.next(14);
        (0..length).map(|_| b'a' + u8::try_from(self.next(26)).unwrap()).collect()
    }
}

/// Two mounts of a branch, each of which changes chunks of its own, with programs that open, read
/// and close files all the time.
async fn two_mounts(seed: u64, steps: usize) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let lab = Lab::new().await;
    let branch = Branch::default();
    // The last one stays, so that there is a directory of chunks.
    let chunks: [(&str, &[u8]); 5] =
        [("0", b"zero"), ("1", b"one"), ("2", b"two two two"), ("3", b"3"), ("7", b"seven")];
    let first = Mount::with_arrays(&lab, "first", &branch, &chunks).await;
    let second = Mount::new(&lab, "second", &branch).await;
    let mut mounts = vec![first, second];
    let mut open = [Vec::new(), Vec::new()];
    let mut found = [None, None];
    for _ in 0..steps {
        let which = random.next(2);
        let mount = &mut mounts[which];
        let handles = &mut open[which];
        let mut own = format!("a/c/{}", 2 * random.next(3) + which);
        // The first mount alone changes this array, and moves it.
        let moving = if mount.paths().contains(&"m/zarr.json".to_owned()) { ["m", "n"] } else { ["n", "m"] };
        if which == 0 && random.next(3) == 0 {
            own = format!("{}/c/{}", moving[0], random.next(3));
        }
        let is_there = mount.paths().contains(&own);
        let what = random.next(23);
        // Shown if the test fails.
        println!("seed {seed}: mount {which}, {what}, {own}");
        if matches!(what, 4..=7 | 16 | 17 | 20 | 21) {
            handles.iter_mut().for_each(Opened::on_move);
        }
        match what {
            0 => drop(mount.write(&own, &random.bytes()).await),
            1 if is_there => drop(mount.patch(&own, random.next(6), b"PATCH").await),
            2 => mount.replace(&own, &random.bytes()).await,
            3 if is_there => mount.remove(&own).await,
            4 | 5 => mount.commit().await,
            6 | 7 => mount.refresh().await,
            8 if handles.len() < 6 => {
                let paths = mount.paths();
                handles.extend(mount.open(&paths[random.next(paths.len())]).await);
            }
            9 if !handles.is_empty() => mount.close(handles.swap_remove(random.next(handles.len()))).await,
            10 if !handles.is_empty() => mount.check_page(&handles[random.next(handles.len())], random.next(4)).await,
            11 => mount.kernel.evict(),
            12 => mount.check_all().await,
            16 if own.starts_with('a') => mount.discard(Some(&own)).await,
            20 | 21 if which == 0 => mount.rename(moving[0], moving[1]).await,
            17 if random.next(4) == 0 => mount.discard(None).await,
            18 if random.next(4) == 0 => {
                handles.clear();
                found[which] = None;
                let killed = mounts.remove(which);
                mounts.insert(which, killed.restart(&lab).await);
            }
            13 | 14 => {
                let paths = mount.paths();
                let before = found[which].take();
                found[which] = mount.find(&paths[random.next(paths.len())]).await;
                if let Some(before) = before {
                    mount.check_found(before).await;
                }
            }
            _ => {
                let paths = mount.paths();
                let _ = mount.kernel.stat(&paths[random.next(paths.len())]).await;
            }
        }
    }
    finish(mounts, open).await;
    // The repository has what the mounts have shown.
    Mount::new(&lab, "third", &branch).await.check_all().await;
}

/// Commits what both mounts have, and closes what is open.
async fn finish(mut mounts: Vec<Mount>, open: [Vec<Opened>; 2]) {
    for (mount, mut handles) in mounts.iter_mut().zip(open) {
        for opened in &handles {
            mount.check(opened).await;
        }
        mount.check_all().await;
        handles.iter_mut().for_each(Opened::on_move);
        mount.commit().await;
        for opened in handles {
            mount.check(&opened).await;
            mount.close(opened).await;
        }
        mount.kernel.evict();
        mount.check_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_read_what_they_opened() {
    let usual = if std::env::var_os("ICECHUNKFS_FULL").is_some() { 200 } else { 12 };
    let seeds = std::env::var("ICECHUNKFS_LAB_SEEDS").map_or(usual, |seeds| seeds.parse().unwrap());
    // Of a seed that failed, the rest need not be waited for.
    let first = std::env::var("ICECHUNKFS_LAB_FIRST").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..seeds {
        two_mounts(seed, 200).await;
    }
}

/// A mount with an array of some chunks, all of which are the base's.
async fn one_mount(lab: &Lab) -> Mount {
    let chunks: [(&str, &[u8]); 3] = [("0", b"zero zero"), ("1", b"one"), ("7", b"seven")];
    let branch = Branch::default();
    Mount::with_arrays(lab, "first", &branch, &chunks).await;
    Mount::new(lab, "second", &branch).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_keeps_what_was_written_to_its_file_and_discarded() {
    for is_written in [false, true] {
        let lab = Lab::new().await;
        let mut mount = one_mount(&lab).await;
        if is_written {
            mount.write("a/c/0", b"before").await;
        }
        let mut reader = mount.open("a/c/0").await.unwrap();
        mount.patch("a/c/0", 2, b"PATCH").await;
        reader.on_move();
        mount.discard(None).await;
        mount.check(&reader).await;
        mount.check_all().await;
        mount.close(reader).await;
        mount.check_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_looked_up_again_if_its_file_was_replaced_meanwhile() {
    let lab = Lab::new().await;
    let mut mount = one_mount(&lab).await;
    mount.patch("a/c/0", 4, b"-PATCHED").await;
    let found = mount.find("a/c/0").await.unwrap();
    mount.replace("a/c/0", b"new").await;
    mount.check_found(found).await;
    mount.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_looked_up_again_if_its_file_was_removed_meanwhile() {
    let lab = Lab::new().await;
    let mut mount = one_mount(&lab).await;
    mount.patch("a/c/0", 4, b"-PATCHED").await;
    let found = mount.find("a/c/0").await.unwrap();
    mount.remove("a/c/0").await;
    mount.check_found(found).await;
    mount.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discard_shows_no_byte_of_a_file_that_was_changed_and_replaced() {
    for removes in [false, true] {
        let lab = Lab::new().await;
        let mut mount = one_mount(&lab).await;
        mount.patch("a/c/0", 2, b"PATCH").await;
        mount.check_all().await;
        mount.replace("a/c/0", b"new").await;
        if removes {
            mount.remove("a/c/0").await;
        }
        mount.discard(Some("a/c/0")).await;
        mount.check_all().await;
    }
}
