//! Work on many documents at a time within the memory bound.

use futures_util::stream::{self, StreamExt};

use crate::error::{ErrorKind, Result};

/// Calls `work` for each of `items`, for up to `concurrency` at a time, and passes the results to
/// `take` in any order.
///
/// Work that does not fit into memory beside the others is repeated by itself after them: each of
/// several that are decoded may hold what the next one waits for. `work` must have no effects
/// before it fails with [`ErrorKind::OutOfMemory`].
///
/// Errors: the first one of `work` or `take`. [`ErrorKind::OutOfMemory`] means that an item does
/// not fit even alone.
pub async fn try_for_each<T: Clone, R, F: Future<Output = Result<R>>>(
    items: impl IntoIterator<Item = T>,
    concurrency: usize,
    work: impl Fn(T) -> F,
    mut take: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let work = &work;
    let running = stream::iter(items).map(|item| {
        let running = work(item.clone());
        async move { (item, running.await) }
    });
    let mut running = running.buffer_unordered(concurrency.max(1));
    let mut refused = Vec::new();
    while let Some((item, result)) = running.next().await {
        match result {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => refused.push(item),
            result => take(result?)?,
        }
    }
    drop(running);
    for item in refused {
        take(work(item).await?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Error;

    #[tokio::test]
    async fn what_is_refused_beside_others_is_repeated_alone() {
        let running = AtomicUsize::new(0);
        let work = async |item: u32| {
            let others = running.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::Relaxed);
            match others {
                0 if item < 100 => Ok(item),
                _ => Err(Error::new(ErrorKind::OutOfMemory, "no room")),
            }
        };
        let mut found = Vec::new();
        let mut take = |item| {
            found.push(item);
            Ok(())
        };
        try_for_each(0..20, 4, work, &mut take).await.unwrap();
        let alone = try_for_each([1, 100], 4, work, &mut take).await;
        assert_eq!(alone.unwrap_err().kind(), ErrorKind::OutOfMemory);
        found.sort_unstable();
        assert_eq!(found, [vec![0, 1], (1..20).collect()].concat());
    }
}
