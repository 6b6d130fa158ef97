//! Every program that is meant to read a view, on every array of the fixtures and of generated
//! repositories: values, dimensions and attributes equal what zarr-python 3 reads on the native
//! view, or differ as `programs/limits.py` says.
//!
//! The result is a part of `docs/views.md`:
//! `ICECHUNKFS_WRITE_REFERENCE=1 cargo test --test views matrix` writes it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::writing::needed;
use crate::common::{FixtureSet, Mount, all_together, place, project, python, run};

/// Places of the virtual chunks of the fixtures.
const VIRTUAL: [&str; 2] = ["file:///icechunkfs-virtual/", "s3://icechunkfs-virtual/data/"];

/// Program with a command line that shows whether it is there.
type Program = (&'static str, &'static [&'static str]);

/// Returns true if `command` ends well.
fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Returns true if a command line ends well.
fn is_there(words: &[&str]) -> bool {
    works(Command::new(words[0]).args(&words[1..]))
}

/// Returns a script of the matrix.
fn script(name: &str) -> PathBuf {
    project("tests/views/programs").join(name)
}

/// Interpreter with a script and its arguments.
struct Reader {
    interpreter: PathBuf,
    script: &'static str,
    arguments: Vec<&'static str>,
}

impl Reader {
    fn new(interpreter: &Path, script: &'static str, arguments: &[&'static str]) -> Reader {
        Reader { interpreter: interpreter.to_owned(), script, arguments: arguments.to_vec() }
    }

    fn run(&self, plan: &Path) {
        let mut command = Command::new(&self.interpreter);
        // No compiled scripts in the source.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let output = run(command.arg(script(self.script)).arg(plan).args(&self.arguments));
        let printed = output.all();
        let last: Vec<&str> = printed.lines().rev().take(20).collect();
        assert!(output.status.success(), "{} {:?}: {last:#?}", self.script, self.arguments);
    }
}

/// Returns the names of the programs that are there, and whether all are.
fn there(programs: &[Program]) -> (Vec<&'static str>, bool) {
    let mut found = Vec::new();
    for (name, words) in programs {
        if needed(is_there(words), &format!("{name}: scripts/setup --programs installs it")) {
            found.push(*name);
        }
    }
    let has_all = found.len() == programs.len();
    (found, has_all)
}

/// Returns two lists of readers, to be run at the same time, and whether all programs are there.
fn readers(python: &Path) -> ([Vec<Reader>; 2], bool) {
    let old = project("target/venv-zarr2/bin/python");
    let copiers: [Program; 3] =
        [("ncdump", &["which", "ncdump"]), ("NCO", &["ncks", "--version"]), ("CDO", &["cdo", "--version"])];
    let compilers: [Program; 2] = [
        ("R", &["Rscript", "-e", "library(ncdf4)"]),
        ("Fortran", &["sh", "-c", "nf-config --version && gfortran --version"]),
    ];
    let (copies, has_copies) = there(&copiers);
    let (compiled, has_compiled) = there(&compilers);
    let gdal = Path::new("/usr/bin/python3");
    let has_gdal =
        needed(works(Command::new(gdal).args(["-c", "from osgeo import gdal"])), "GDAL: scripts/setup --programs");
    let has_zarr2 = needed(old.exists(), &format!("{}: scripts/setup --zarr2 makes it", old.display()));
    // The copies follow netCDF4-python: it says which variables can be read.
    let mut one = vec![Reader::new(python, "read_netcdf4.py", &[])];
    if !copies.is_empty() {
        one.push(Reader::new(python, "read_copies.py", &copies));
    }
    if !compiled.is_empty() {
        one.push(Reader::new(python, "read_compiled.py", &compiled));
    }
    let mut other = vec![
        Reader::new(python, "read_reference.py", &[]),
        Reader::new(python, "read_h5py.py", &[]),
        Reader::new(python, "read_xarray.py", &["netcdf"]),
    ];
    if has_zarr2 {
        other.push(Reader::new(&old, "read_zarr2.py", &[]));
        other.push(Reader::new(&old, "read_xarray.py", &["zarr2"]));
    }
    if has_gdal {
        other.push(Reader::new(gdal, "read_gdal.py", &[]));
    }
    ([one, other], has_copies && has_compiled && has_gdal && has_zarr2)
}

/// Returns the repositories: the generated ones below `directory`, and all fixtures.
fn repositories(python: &Path, directory: &Path, shared: &FixtureSet) -> Vec<(String, PathBuf)> {
    let generated = [("generated", "netcdf_write.py"), ("kinds", "make.py")];
    let made = all_together(&generated, |_, (name, script)| {
        let path = directory.join(name);
        run(Command::new(python).arg(project("tests/views").join(script)).arg(&path)).success();
        ((*name).to_owned(), path)
    });
    let own = FixtureSet::own();
    let fixtures = [&own, shared].into_iter().flat_map(|set| set.all().into_iter().chain(set.alphas()));
    made.into_iter().chain(fixtures.map(|fixture| (fixture.name, fixture.repository))).collect()
}

#[test]
#[ignore = "needs CDO, NCO, GDAL, R and more: scripts/test --full"]
fn every_program_reads_what_zarr_python_reads() {
    let (Some(python), Some(shared)) = (python(), FixtureSet::shared()) else { return };
    if !place::needs_directory() {
        return;
    }
    let has_h5netcdf = works(Command::new(&python).args(["-c", "import h5netcdf"]));
    if !needed(has_h5netcdf, "h5netcdf: scripts/setup --python installs it") {
        return;
    }
    // Without it the generated repository has no arrays of pcodec.
    needed(works(Command::new(&python).args(["-c", "import pcodec"])), "pcodec: scripts/setup --python installs it");
    let work = tempfile::tempdir().unwrap();
    let sources = shared.expected_path("x").parent().unwrap().with_file_name("virtual-src");
    let [files, bucket] = VIRTUAL.map(|from| format!("{from}={}", sources.display()));
    let maps: [&str; 4] = ["--virtual-map", &files, "--virtual-map", &bucket];
    let views: [(&str, &[&str]); 3] =
        [("zarr", &["--read-only"]), ("zarr2", &["--view", "zarr2"]), ("netcdf", &["--view", "netcdf"])];
    let mut mounts = Vec::new();
    let mut listed = Vec::new();
    for (name, repository) in repositories(&python, work.path(), &shared) {
        let mut entry = json!({"name": name});
        for (view, words) in views {
            let mount = Mount::new(&repository, &[words, &maps[..]].concat());
            entry[view] = json!(mount.path().display().to_string());
            mounts.push(mount);
        }
        listed.push(entry);
    }
    let results = work.path().join("results");
    std::fs::create_dir(&results).unwrap();
    let plan = work.path().join("plan.json");
    std::fs::write(&plan, json!({"work": results.display().to_string(), "repositories": listed}).to_string()).unwrap();

    let (lists, has_all) = readers(&python);
    all_together(&lists, |_, list| list.iter().for_each(|reader| reader.run(&plan)));
    let mut compare = Command::new(&python);
    compare.env("PYTHONDONTWRITEBYTECODE", "1");
    let compared = run(compare.arg(script("compare.py")).arg(&plan)).json();
    let problems: Vec<&str> = compared["problems"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    let arrays = |view: &str| compared["arrays"][view].as_u64().unwrap();
    println!("{} arrays compared, of {} and {}", compared["compared"], arrays("netcdf"), arrays("zarr2"));
    assert!(arrays("netcdf") > 600 && arrays("zarr2") > 600, "{} {}", arrays("netcdf"), arrays("zarr2"));
    if has_all {
        check_page(&compared);
    }
}

/// Compares the tables of `docs/views.md` with what was measured, or writes them. Other versions of
/// programs are no difference.
fn check_page(compared: &Value) {
    let path = project("docs/views.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let blocks = [
        ("versions", compared["versions"].as_str().unwrap()),
        ("features of netcdf", compared["features"]["netcdf"].as_str().unwrap()),
        ("features of zarr2", compared["features"]["zarr2"].as_str().unwrap()),
    ];
    let mut written = page.clone();
    for (name, block) in blocks {
        let begin = format!("<!-- {name}: made by tests/views/matrix.rs -->\n\n");
        let end = "\n\n<!-- end -->";
        let (before, rest) = written.split_once(&begin).unwrap_or_else(|| panic!("docs/views.md has no {begin}"));
        let (stored, after) = rest.split_once(end).unwrap();
        let is_write = std::env::var_os("ICECHUNKFS_WRITE_REFERENCE").is_some();
        assert!(
            is_write || name == "versions" || stored == block,
            "the {name} in docs/views.md are stale: run ICECHUNKFS_WRITE_REFERENCE=1 cargo test --test views matrix\n{block}"
        );
        if is_write {
            written = format!("{before}{begin}{block}{end}{after}");
        }
    }
    if written != page {
        std::fs::write(&path, written).unwrap();
    }
}
