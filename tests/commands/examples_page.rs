//! `docs/examples.md`: each command with what it prints. The page is what the program prints now,
//! with ids, times, places and sizes of metadata made the same.
//!
//! `ICECHUNKFS_WRITE_REFERENCE=1 cargo test --test commands examples_page` writes the page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use crate::common::random::Random;
use crate::common::{Unmounted, program, project, remove_default_scratch};

const PAGE: &str = "docs/examples.md";

const INTRODUCTION: &str = "# Examples

Each command with what it prints, from an empty directory on. Commands that only make directories
and files are not shown. The page is made by a test (`examples_page`), which replaces ids, times and
sizes of metadata by others.
";

/// Document of an array of 4 x 6 bytes in chunks of 2 x 6.
const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,6]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"}],"attributes":{"units":"K"},"dimension_names":["lat","lon"]}"#;

/// Headings with their commands. Those that begin with `:` set something up and are not shown.
const CHAPTERS: &[(&str, &[&str])] = &[
    (
        "A repository, a mount, a commit",
        &[
            "icechunkfs init repo --zarr-group",
            ":mkdir mnt",
            "icechunkfs mount repo mnt",
            ":mkdir -p mnt/sst/c/0 mnt/sst/c/1 && cp sst.json mnt/sst/zarr.json",
            "printf abcdefghijkl > mnt/sst/c/0/0",
            "echo 'to be cleaned' > mnt/notes.txt",
            "icechunkfs status mnt",
            "icechunkfs diff mnt",
            "icechunkfs commit mnt -m 'Surface temperature'",
            "cat mnt/.icechunk/commit",
            "icechunkfs status mnt",
            "icechunkfs log repo",
        ],
    ),
    (
        "Look at it",
        &[
            "icechunkfs ls repo",
            "icechunkfs show repo sst",
            "icechunkfs cat repo sst/c/0/0",
            "icechunkfs stats repo",
            "icechunkfs verify repo",
        ],
    ),
    (
        "Change it, and see what changed",
        &[
            "printf ABCDEFGHIJKL > mnt/sst/c/1/0",
            "sed -i 's/\"K\"/\"degC\"/' mnt/sst/zarr.json",
            "icechunkfs diff mnt",
            "icechunkfs commit mnt -m 'South, in degrees'",
            "icechunkfs log repo --oneline",
            "icechunkfs diff repo main~1 main",
            "icechunkfs diff repo main~1 main --patch",
            "icechunkfs diff repo main~1 main --stat",
            "icechunkfs diff repo main~1 main sst --values",
            "icechunkfs log repo sst --chunks 1,0 --oneline",
            "printf x > mnt/sst/c/0/0",
            "icechunkfs discard mnt sst",
        ],
    ),
    (
        "Branches and tags",
        &[
            "icechunkfs branch create repo trial",
            "icechunkfs branch repo",
            "icechunkfs tag create repo v1.0 --at main~1",
            "icechunkfs tag repo",
            "icechunkfs refs repo",
            ":mkdir old",
            "icechunkfs mount repo old --tag v1.0",
            "icechunkfs status old",
            "icechunkfs unmount old",
        ],
    ),
    (
        "A job with one commit",
        &[
            "icechunkfs run repo --branch trial -m 'Night of 27 November' -- sh -c 'printf 123456789012 > sst/c/0/0'",
            "icechunkfs run repo --branch trial -m 'A failure' -- false",
        ],
    ),
    (
        "Merge, and settle conflicts",
        &[
            "icechunkfs merge repo trial --dry-run",
            "icechunkfs merge repo trial -m 'The night'",
            "icechunkfs log repo --graph",
            "printf mine________ > mnt/sst/c/0/0",
            "icechunkfs commit mnt -m 'Mine'",
            "cat mnt/.icechunk/conflicts",
            "icechunkfs resolve mnt sst --ours",
            "icechunkfs commit mnt -m 'Mine'",
        ],
    ),
    (
        "Take back",
        &[
            "icechunkfs revert repo main",
            "icechunkfs undo repo --dry-run",
            "icechunkfs undo repo --yes",
            "icechunkfs refresh mnt",
            "icechunkfs restore mnt sst --from v1.0",
            "icechunkfs commit mnt -m 'As in v1.0'",
            "icechunkfs amend repo -m 'As in version 1.0' --yes",
            "icechunkfs refresh mnt",
            "icechunkfs squash repo --last 2 -m 'Back to version 1.0' --yes",
            "icechunkfs ops repo -n 4",
        ],
    ),
    (
        "A snapshot to look at first",
        &[
            ":icechunkfs refresh mnt",
            "printf 'a new south ' > mnt/sst/c/1/0",
            "icechunkfs commit mnt -m 'Perhaps' --detach",
            "icechunkfs unmount mnt",
        ],
    ),
    (
        "Copies",
        &[
            "icechunkfs clone repo copy",
            "icechunkfs push repo copy",
            "icechunkfs pull copy",
            "icechunkfs export repo plain v1.0",
            "icechunkfs import plain new -m 'From plain files'",
        ],
    ),
    (
        "Maintenance",
        &[
            "icechunkfs config repo set inline_chunk_threshold_bytes 1000",
            "icechunkfs config repo",
            "icechunkfs rewrite-manifests repo",
            ":sleep 1.1",
            "icechunkfs gc repo --older-than 1s --yes",
            "icechunkfs expire repo --older-than 1s --yes",
        ],
    ),
    (
        "Mistakes",
        &[
            "icechunkfs mount mnt repo",
            "icechunkfs log s3:/bucket/ocean",
            "icechunkfs log plain",
            "icechunkfs checkout repo",
            "icechunkfs branch repo -d trial",
            "icechunkfs diff repo mian main",
            "icechunkfs status",
            "icechunkfs gc repo --older-than 30d",
        ],
    ),
];

#[test]
fn the_page_has_what_the_program_prints() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path().canonicalize().unwrap();
    std::fs::write(work.join("sst.json"), ARRAY).unwrap();
    let _desk = Desk(work.clone());
    let mut ids = Ids::default();
    let mut printed = Vec::new();
    for (heading, commands) in CHAPTERS {
        let mut all = Vec::new();
        for &line in *commands {
            let (line, is_shown) = line.strip_prefix(':').map_or((line, true), |line| (line, false));
            let output = sh(&work, line);
            if work.join("repo/repo").exists() {
                ids.learn(&sh(&work, "icechunkfs ops repo --json"));
            }
            ids.learn(&output);
            if is_shown {
                all.push((line, output));
            }
        }
        printed.push((heading, all));
    }
    let mut page = INTRODUCTION.to_owned();
    for (heading, all) in printed {
        page.push_str(&format!("\n## {heading}\n\n```console\n"));
        for (line, output) in all {
            page.push_str(&format!("$ {line}\n{}", same(&ids.replaced(&output), &work)));
            if !page.ends_with('\n') {
                page.push('\n');
            }
        }
        page.push_str("```\n");
    }
    let place = project(PAGE);
    if std::env::var_os("ICECHUNKFS_WRITE_REFERENCE").is_some() {
        std::fs::write(&place, &page).unwrap();
    }
    let expected = std::fs::read_to_string(&place).unwrap_or_default();
    let difference = similar::TextDiff::from_lines(&expected, &page).unified_diff().to_string();
    assert!(difference.is_empty(), "{PAGE} is to be written again, with ICECHUNKFS_WRITE_REFERENCE=1:\n{difference}");
}

/// Directory of the commands, with its mounts.
struct Desk(PathBuf);

impl Drop for Desk {
    fn drop(&mut self) {
        drop(Unmounted(["mnt", "old"].map(|name| self.0.join(name)).into()));
        remove_default_scratch(&self.0);
    }
}

/// Runs a line of the shell in `work`, and returns what it prints.
fn sh(work: &Path, line: &str) -> String {
    let directory = Path::new(program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 2>&1; {line}")]).current_dir(work).env("PATH", path);
    command.env("XDG_STATE_HOME", work.join("state")).env("TMPDIR", work).env("TZ", "UTC").env("LC_ALL", "C");
    String::from_utf8(command.stdin(std::process::Stdio::null()).output().unwrap().stdout).unwrap()
}

static ID: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[0-9A-HJKMNP-TV-Z]{20}\b").unwrap());

/// Ids that were printed, each with one that is the same in every run.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    fn learn(&mut self, text: &str) {
        for found in ID.find_iter(text) {
            let number = self.0.len() as u64;
            self.0.entry(found.as_str().to_owned()).or_insert_with(|| invented(number));
        }
    }

    /// Replaces ids, and their first eight characters.
    fn replaced(&self, text: &str) -> String {
        let text = ID.replace_all(text, |found: &regex::Captures<'_>| self.0[&found[0]].clone()).into_owned();
        self.0.iter().fold(text, |text, (id, other)| text.replace(&id[..8], &other[..8]))
    }
}

fn invented(number: u64) -> String {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let mut random = Random::new(number + 1);
    (0..19).map(|_| DIGITS[random.below(32)] as char).chain(['0']).collect()
}

/// Replaces what differs from run to run.
fn same(text: &str, work: &Path) -> String {
    let mut text = text.replace(&work.display().to_string(), "/data");
    for (pattern, by) in [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "2026-11-27T09:00:00Z"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( \+00:00)?", "2026-11-27 09:00:00 +00:00"),
        (r"(?m)^([*o| ]+  \S{20}) \d{4}-\d\d-\d\d \d\d:\d\d", "$1 2026-11-27 09:00"),
        (r"(/var/lib|/data/state)/icechunkfs/%2F\S*?%2Frepo", "/var/lib/icechunkfs/%2Fdata%2Frepo"),
        (r"process \d+|pid \d+", "process 4711"),
        (r"\b\d{3} bytes\b", "999 bytes"),
        (r"\b[\d,]{4,} bytes\b", "1234 bytes"),
        (r"\b[\d,.]+ [KM]iB\b", "1.2 KiB"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, by).into_owned();
    }
    text
}
