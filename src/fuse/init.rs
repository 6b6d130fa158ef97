//! Negotiation with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};
use tracing::{debug, warn};

/// Read-ahead requests that the kernel may have in flight; its default of 12 leaves workers idle.
const MAX_BACKGROUND: u16 = 64;
/// Largest read or write, in bytes: 256 pages, the most that kernels accept with default limits.
const MAX_REQUEST: u32 = 1 << 20;

/// Negotiates what every mount needs, and `more`. Returns the capabilities of the kernel.
pub(super) fn negotiate(config: &mut KernelConfig, more: InitFlags) -> InitFlags {
    let offered = config.capabilities();
    // Listed one by one: fuser 0.18 would negotiate capabilities that it does not implement.
    let wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | more;
    if let Err(missing) = config.add_capabilities(wanted & offered) {
        debug!("the kernel lacks {missing:?}");
    }
    // Each refusal names the nearest accepted value. For read-ahead that is the kernel's own
    // setting, most often 128 KiB: super::readahead raises it afterwards, if it may.
    let settings = [
        ("read-ahead", config.set_max_readahead(MAX_REQUEST).or_else(|ceiling| config.set_max_readahead(ceiling))),
        ("largest request", config.set_max_write(MAX_REQUEST).or_else(|ceiling| config.set_max_write(ceiling))),
        ("background requests", config.set_max_background(MAX_BACKGROUND).map(u32::from).map_err(u32::from)),
    ];
    for (what, outcome) in settings {
        if let Err(nearest) = outcome {
            warn!("the kernel refuses the setting for {what}; it accepts {nearest}");
        }
    }
    if let Err(nearest) = config.set_time_granularity(std::time::Duration::from_nanos(1)) {
        debug!("times are kept to {nearest:?}");
    }
    offered
}

/// Negotiates passthrough. Returns false if the kernel has none, or fails if `insist` is set.
pub(super) fn passthrough(config: &mut KernelConfig, insist: bool) -> std::io::Result<bool> {
    // Depth 2: the files may themselves be on a stacked file system such as overlayfs.
    let depth = config.set_max_stack_depth(2);
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() && depth.is_ok() {
        return Ok(true);
    }
    if insist {
        return Err(std::io::Error::other("this kernel has no FUSE passthrough: 6.9 and later have"));
    }
    Ok(false)
}
