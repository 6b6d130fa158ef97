//! Open control files: their contents, and whether their command was given.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::files::ControlFile;

#[derive(Debug, Default)]
pub(super) struct Handles {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    open: HashMap<u64, Handle>,
}

#[derive(Debug)]
struct Handle {
    file: ControlFile,
    content: Vec<u8>,
    command_given: bool,
}

impl Handles {
    pub(super) fn open(&self, file: ControlFile, content: Vec<u8>) -> u64 {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        inner.open.insert(number, Handle { file, content, command_given: false });
        number
    }

    pub(super) fn read(&self, handle: u64, offset: u64, size: u32) -> Vec<u8> {
        let inner = self.inner.lock();
        let content = inner.open.get(&handle).map(|handle| handle.content.as_slice()).unwrap_or_default();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let end = start.saturating_add(size as usize).min(content.len());
        content.get(start..end).unwrap_or_default().to_vec()
    }

    /// Returns the file of `handle`, and true if this is its first command; none if `handle` is not open.
    pub(super) fn take_command(&self, handle: u64) -> Option<(ControlFile, bool)> {
        let mut inner = self.inner.lock();
        let handle = inner.open.get_mut(&handle)?;
        let first = !std::mem::replace(&mut handle.command_given, true);
        Some((handle.file, first))
    }

    pub(super) fn answer(&self, handle: u64, content: Vec<u8>) {
        if let Some(handle) = self.inner.lock().open.get_mut(&handle) {
            handle.content = content;
        }
    }

    pub(super) fn release(&self, handle: u64) {
        self.inner.lock().open.remove(&handle);
    }
}
