//! Layout of what the kernel and a ring exchange (`include/uapi/linux/fuse.h`, protocol 7.42): a
//! header of its own for each request, beside the payload. All numbers are in the byte order of the
//! machine.

/// Bytes of the header of a request in a ring (`fuse_uring_req_header`).
pub(super) const HEADER: usize = 288;
/// Place of the header of the operation, in bytes of the ring's header.
pub(super) const OPERATION: usize = 128;
/// Bytes of the header of the operation, at most.
pub(super) const MAX_OPERATION: usize = 128;
/// Place of what describes the payload (`fuse_uring_ent_in_out`).
const ENTRY: usize = 256;
/// Places of the commit's number and of the payload's length.
pub(super) const COMMIT: usize = ENTRY + 8;
pub(super) const PAYLOAD_LENGTH: usize = ENTRY + 16;

/// Commands for the kernel (`fuse_uring_cmd`): hand over an entry for the first time, or with an
/// answer.
pub(super) const REGISTER: u32 = 1;
pub(super) const COMMIT_AND_FETCH: u32 = 2;
/// Segments of memory of an entry: its header and its payload.
pub(super) const SEGMENTS: u32 = 2;
/// Place of the number of segments in an entry of the submission queue (`io_uring_sqe.len`).
pub(super) const SQE_LENGTH: usize = 24;

/// Returns the argument of a command (`fuse_uring_cmd_req`): the request that is answered, and the
/// queue.
pub(super) fn command(commit: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    for (to, from) in bytes.iter_mut().skip(8).zip(commit.to_ne_bytes()) {
        *to = from;
    }
    for (to, from) in bytes.iter_mut().skip(16).zip(queue.to_ne_bytes()) {
        *to = from;
    }
    bytes
}

/// Number of a request that writes (`fuse_opcode`), the one whose header the kernel puts before
/// bytes.
pub(super) const WRITE: u32 = 16;
