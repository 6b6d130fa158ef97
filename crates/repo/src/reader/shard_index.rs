//! Indexes of shards, for those who look inner chunks up.

use std::sync::Arc;

use super::Reader;
use super::chunk::ChunkRange;
use super::shards::RemoteShard;
use crate::cache::CacheKey;
use icechunkfs_base::error::Result;
use icechunkfs_format::zarr::shard::{Index, IndexForm, ShardLayout};

/// Bytes of an error beside its message.
const ERROR_OVERHEAD: u64 = 128;

/// Key of the index of a stored shard, decoded in a form.
#[derive(Debug, PartialEq, Eq, Hash)]
struct IndexKey {
    shard: ChunkRange,
    form: IndexForm,
}

impl CacheKey for IndexKey {
    /// The index, or the reason why it cannot be used.
    type Value = Result<Arc<Index>>;

    fn weight(&self, index: &Self::Value) -> u64 {
        self.shard.own_weight()
            + match index {
                // Two numbers of 64 bits an entry.
                Ok(index) => 16 * index.entry_count(),
                Err(error) => ERROR_OVERHEAD + error.to_string().len() as u64,
            }
    }
}

impl Reader {
    /// Returns the index of `shard`, from the cache or read once for all concurrent callers.
    ///
    /// Fails with [`icechunkfs_base::error::ErrorKind::Corrupt`] if the index is damaged, which is
    /// remembered like an index. An answer of the store that is too short is not: another one may
    /// be whole.
    pub async fn shard_index(self: &Arc<Self>, sharding: &ShardLayout, shard: &ChunkRange) -> Result<Arc<Index>> {
        let key = IndexKey { shard: shard.clone(), form: sharding.index_form() };
        if let Some(index) = self.cache.get(&key) {
            return index;
        }
        let this = Arc::clone(self);
        let sharding = sharding.clone();
        let shard = shard.clone();
        let load = async move {
            let bytes = match sharding.index_range(shard.length).filter(|_| this.is_file(&shard.object)) {
                Some(place) => Some(this.read_exactly(&shard, place.start, place.end - place.start).await?),
                None => RemoteShard { reader: &this, sharding: &sharding, shard: &shard }.index_bytes().await?,
            };
            Ok(Index::decode(&sharding, shard.length, bytes.unwrap_or_default()).map(Arc::new))
        };
        self.cache.get_or_load(key, load).await?
    }
}
