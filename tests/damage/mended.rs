//! Inputs with which the fuzzers once found a fault: what is mended stays mended, without a fuzzer.

#[path = "../../fuzz/targets/mod.rs"]
mod targets;

use crate::common::{project, watchdog};

#[test]
fn inputs_that_once_failed_are_processed() {
    watchdog();
    let mut inputs = 0;
    for (name, target) in targets::ALL {
        let Ok(directory) = std::fs::read_dir(project("fuzz/mended").join(name)) else { continue };
        for file in directory {
            target(&std::fs::read(file.unwrap().path()).unwrap());
            inputs += 1;
        }
    }
    assert!(inputs >= 3, "{inputs}");
}
