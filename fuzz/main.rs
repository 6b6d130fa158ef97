//! The fuzzers: libFuzzer over every parser of untrusted input. `scripts/fuzz` builds, seeds and
//! runs them.
//!
//! It is an example of the package, so that it is built of the same dependencies as the tests, and
//! no other toolchain is needed: coverage is an option of the released compiler.
//!
//! ```text
//! fuzz                          the targets' names
//! fuzz TARGET [CORPUS | FILE | -OPTION=VALUE]...      with libFuzzer's own options
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../tests/common/counted.rs"]
mod counted;
mod targets;

use std::ffi::{CString, c_char, c_int};
use std::process::ExitCode;
use std::sync::OnceLock;

use counted::Counted;

/// Bytes that a target may have allocated at a time. The first mutated repositories needed 16 times
/// as many. libFuzzer keeps the input that exceeded it.
const MOST_MEMORY: usize = 256 << 20;

/// The bound that the program keeps by itself, as `--memory` sets it. Bytes.
const MEMORY_BOUND: u64 = 192 << 20;

#[global_allocator]
static ALLOCATOR: Counted = Counted(MOST_MEMORY);

static TARGET: OnceLock<targets::Target> = OnceLock::new();

unsafe extern "C" {
    /// libFuzzer's own `main`, with a function to call.
    fn LLVMFuzzerRunDriver(
        count: *mut c_int,
        words: *mut *mut *mut c_char,
        call: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// Passes an input of libFuzzer's on to the target.
extern "C" fn call(bytes: *const u8, length: usize) -> c_int {
    let bytes = match length {
        0 => &[][..],
        // SAFETY: libFuzzer lends this many bytes for the time of the call.
        _ => unsafe { std::slice::from_raw_parts(bytes, length) },
    };
    if let Some(target) = TARGET.get() {
        target(bytes);
    }
    0
}

/// The libFuzzer crate refers to this function.
#[unsafe(no_mangle)]
fn rust_fuzzer_test_input(bytes: &[u8]) -> i32 {
    call(bytes.as_ptr(), bytes.len())
}

fn main() -> ExitCode {
    // Links libFuzzer.
    use libfuzzer_sys as _;
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let Some((_, target)) = targets::ALL.iter().find(|(known, _)| *known == name) else {
        targets::ALL.iter().for_each(|(name, _)| println!("{name}"));
        return if name.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    TARGET.get_or_init(|| *target);
    // The budget refuses excessive claims of a document, below the bound of this process.
    icechunkfs::memory::set_bound(MEMORY_BOUND);
    // Aborts before the stack is unwound: libFuzzer prints the place.
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
    let words: Vec<CString> = [program].into_iter().chain(words).map(|word| CString::new(word).unwrap()).collect();
    let mut pointers: Vec<*mut c_char> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    let mut count = c_int::try_from(words.len()).unwrap();
    let mut list = pointers.as_mut_ptr();
    // SAFETY: the list has this many words, ends with a null pointer and outlives the call, which
    // changes nothing that they point to.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut list, call) };
    if status == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
