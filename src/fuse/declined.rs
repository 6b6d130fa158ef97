//! Requests that both adapters answer `ENOSYS`: the kernel then stops sending them. No extended attributes are listed or set, and there are no access
//! lists; the kernel checks access by modes itself. It sends `ioctl` each time all the same (Python asks whether each file is a
//! terminal); the answer is immediate.

/// Methods of these requests, within an implementation of [`fuser::Filesystem`].
macro_rules! declined {
    () => {
        declined! { listxattr(_: fuser::INodeNo, _: u32) -> fuser::ReplyXattr }
        declined! { setxattr(_: fuser::INodeNo, _: &std::ffi::OsStr, _: &[u8], _: i32, _: u32) -> fuser::ReplyEmpty }
        declined! { removexattr(_: fuser::INodeNo, _: &std::ffi::OsStr) -> fuser::ReplyEmpty }
        declined! { access(_: fuser::INodeNo, _: fuser::AccessFlags) -> fuser::ReplyEmpty }
        declined! {
            ioctl(_: fuser::INodeNo, _: fuser::FileHandle, _: fuser::IoctlFlags, _: u32, _: &[u8], _: u32)
                -> fuser::ReplyIoctl
        }
        declined! {
            poll(
                _: fuser::INodeNo, _: fuser::FileHandle, _: fuser::PollNotifier, _: fuser::PollEvents, _: fuser::PollFlags
            ) -> fuser::ReplyPoll
        }
    };
    ($name:ident($(_: $argument:ty),*) -> $reply:ty) => {
        fn $name(&self, _: &fuser::Request, $(_: $argument,)* reply: $reply) {
            reply.error(fuser::Errno::ENOSYS);
        }
    };
}

pub(super) use declined;
