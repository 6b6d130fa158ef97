//! The fuzzers: libFuzzer over everything that reads what somebody else wrote. `scripts/fuzz` builds, seeds and runs them.
//!
//! It is an example of the package, so that it is built of the same dependencies as the tests, and no other toolchain is needed: coverage
//! is an option of the released compiler.
//!
//! ```text
//! fuzz                          the targets' names
//! fuzz TARGET [CORPUS | FILE | -OPTION=VALUE]...      as libFuzzer has it
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CString, c_char, c_int};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a target may have allocated at a time, in bytes: a sixteenth of what the first mutated repositories took.
const MOST_MEMORY: usize = 256 << 20;

/// Counts what is allocated, and ends the process when it is too much: libFuzzer keeps the input that made it so.
struct Bounded;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator unchanged, and counts.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let all = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        if all > MOST_MEMORY {
            std::process::abort();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

static TARGET: OnceLock<targets::Target> = OnceLock::new();

unsafe extern "C" {
    /// libFuzzer's own `main`, with a function to call.
    fn LLVMFuzzerRunDriver(
        count: *mut c_int,
        words: *mut *mut *mut c_char,
        call: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// What libFuzzer calls with each input.
extern "C" fn call(bytes: *const u8, length: usize) -> c_int {
    let bytes = match length {
        0 => &[][..],
        // SAFETY: libFuzzer lends so many bytes for the time of the call.
        _ => unsafe { std::slice::from_raw_parts(bytes, length) },
    };
    if let Some(target) = TARGET.get() {
        target(bytes);
    }
    0
}

/// What the crate that brings libFuzzer would call.
#[unsafe(no_mangle)]
fn rust_fuzzer_test_input(bytes: &[u8]) -> i32 {
    call(bytes.as_ptr(), bytes.len())
}

fn main() -> ExitCode {
    // Brings libFuzzer.
    use libfuzzer_sys as _;
    let mut words = std::env::args();
    let (program, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let Some((_, target)) = targets::ALL.iter().find(|(known, _)| *known == name) else {
        targets::ALL.iter().for_each(|(name, _)| println!("{name}"));
        return if name.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    TARGET.get_or_init(|| *target);
    // Before the stack is unwound: libFuzzer says where it was.
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
    let words: Vec<CString> = [program].into_iter().chain(words).map(|word| CString::new(word).unwrap()).collect();
    let mut pointers: Vec<*mut c_char> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    let (mut count, mut list) = (c_int::try_from(words.len()).unwrap(), pointers.as_mut_ptr());
    // SAFETY: the list has so many words, ends with a null pointer and outlives the call, which changes nothing that they point to.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut list, call) };
    if status == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
