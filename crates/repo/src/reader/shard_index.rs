//! Indexes of shards, for those who look inner chunks up.

use std::sync::Arc;

use super::Reader;
use super::cache::{Key, Value};
use super::chunk::ChunkRange;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::shard::{Index, ShardLayout};

impl Reader {
    /// Returns the index of `shard`, from the cache or read once for all concurrent callers.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if the index is damaged, which is remembered like an
    /// index. An answer of the store that is too short is not: another one may be whole.
    pub async fn shard_index(self: &Arc<Self>, sharding: &ShardLayout, shard: &ChunkRange) -> Result<Arc<Index>> {
        let key = Key::Index(shard.clone(), sharding.index_form());
        if let Some(Value::Index(index)) = self.cache.get(&key) {
            return index;
        }
        let this = Arc::clone(self);
        let sharding = sharding.clone();
        let shard = shard.clone();
        let loaded = self.cache.get_or_load(key, async move {
            let bytes = match sharding.index_range(shard.length).filter(|_| this.is_file(&shard.object)) {
                Some(place) => Some(this.read_exactly(&shard, place.start, place.end - place.start).await?),
                None => this.index_bytes(&sharding, &shard).await?,
            };
            let index = Index::decode(&sharding, shard.length, bytes.unwrap_or_default());
            Ok(Value::Index(index.map(Arc::new)))
        });
        match loaded.await? {
            Value::Index(index) => index,
            _ => Err(Error::new(ErrorKind::Io, "the cache holds something else in the place of a shard's index")),
        }
    }
}
