//! What is agreed on with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};
use tracing::{debug, warn};

/// Requests of read-ahead that the kernel may have under way; its default of 12 leaves workers idle.
const MAX_BACKGROUND: u16 = 64;
/// The largest read or write, in bytes: 256 pages, what kernels take without changed limits.
const MAX_REQUEST: u32 = 1 << 20;

/// Asks for what every mount wants, and for `more`. Returns what the kernel has to offer.
pub(super) fn negotiate(config: &mut KernelConfig, more: InitFlags) -> InitFlags {
    let offered = config.capabilities();
    // One by one, never wholesale: fuser 0.18 would negotiate capabilities that it does not implement.
    let wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | more;
    if let Err(missing) = config.add_capabilities(wanted & offered) {
        debug!("the kernel lacks {missing:?}");
    }
    // Each refusal names the nearest value that would do. For read-ahead that is the kernel's own setting, most often
    // 128 KiB: super::readahead raises it afterwards, where it may.
    let settings = [
        ("read-ahead", config.set_max_readahead(MAX_REQUEST).or_else(|ceiling| config.set_max_readahead(ceiling))),
        ("largest request", config.set_max_write(MAX_REQUEST).or_else(|ceiling| config.set_max_write(ceiling))),
        ("background requests", config.set_max_background(MAX_BACKGROUND).map(u32::from).map_err(u32::from)),
    ];
    for (what, outcome) in settings {
        if let Err(nearest) = outcome {
            warn!("the kernel refuses our setting for {what}; it would take {nearest}");
        }
    }
    if let Err(nearest) = config.set_time_granularity(std::time::Duration::from_nanos(1)) {
        debug!("times are kept to {nearest:?}");
    }
    offered
}

/// Asks for passthrough. False if the kernel has none; an error if it has to have.
pub(super) fn passthrough(config: &mut KernelConfig, insist: bool) -> std::io::Result<bool> {
    // Depth 2: the files may themselves lie on a stacked file system such as overlayfs.
    let depth = config.set_max_stack_depth(2);
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() && depth.is_ok() {
        return Ok(true);
    }
    if insist {
        return Err(std::io::Error::other("this kernel has no FUSE passthrough: 6.9 and later have"));
    }
    Ok(false)
}
