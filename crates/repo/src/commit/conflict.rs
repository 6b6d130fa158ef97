//! Conflicts of a change set with concurrent commits: their kinds, and how they are told.

use serde::{Deserialize, Serialize};

use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_format::format::ids::ObjectId;

/// Reason why a change set conflicts with a concurrent commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConflictKind {
    /// The commit moved a node that the change set touches, or deleted one that the change set
    /// moves.
    MoveOperationCannotBeRebased,
    /// A node exists already where the change set creates one.
    NewNodeConflictsWithExistingNode,
    /// One side created an array where the other created a node below.
    NewNodeInInvalidGroup,
    /// One side removed or moved a group, the other created a node in it.
    NewNodeInDeletedGroup,
    /// Both sides changed the same members of a `zarr.json`.
    ZarrMetadataDoubleUpdate,
    /// The change set updates the `zarr.json` of an array that the commit deleted.
    ZarrMetadataUpdateOfDeletedArray,
    /// The change set updates the `zarr.json` of a group that the commit deleted.
    ZarrMetadataUpdateOfDeletedGroup,
    /// Both sides changed the same chunks.
    ChunkDoubleUpdate,
    /// The change set changes chunks of an array that the commit deleted.
    ChunksUpdatedInDeletedArray,
    /// The change set changes chunks that the new `zarr.json` of the commit drops or decodes in
    /// another way.
    ChunksUpdatedInUpdatedArray,
    /// The commit changed chunks that the change set's new `zarr.json` drops or decodes in another
    /// way.
    ChunksUpdatedOutsideNewShape,
    /// The change set deletes an array that the commit changed.
    DeleteOfUpdatedArray,
    /// The change set deletes a group whose `zarr.json` the commit changed.
    DeleteOfUpdatedGroup,
    /// The commit has a node or a chunk under a name that is untracked here.
    UntrackedNameExists,
    /// The commit brings commits to the branch that the merge brings, too, or may do so: the merge
    /// has to be planned again.
    MergedByBoth,
}

impl ConflictKind {
    /// Returns true if one side of such a conflict can be taken.
    pub fn has_sides(self) -> bool {
        matches!(self, ConflictKind::ChunkDoubleUpdate | ConflictKind::ZarrMetadataDoubleUpdate)
    }

    /// Returns a text for display: what happened at the conflict's path.
    pub fn describe(self) -> &'static str {
        match self {
            ConflictKind::MoveOperationCannotBeRebased => "one side moved a node that the other changed",
            ConflictKind::NewNodeConflictsWithExistingNode => "both sides created a node here",
            ConflictKind::NewNodeInInvalidGroup => "one side created a node below an array",
            ConflictKind::NewNodeInDeletedGroup => {
                "one side created a node in a group that the other side removed or moved"
            }
            ConflictKind::ZarrMetadataDoubleUpdate => "both sides changed zarr.json",
            ConflictKind::ZarrMetadataUpdateOfDeletedArray => {
                "this side changed zarr.json of an array that the other side deleted"
            }
            ConflictKind::ZarrMetadataUpdateOfDeletedGroup => {
                "this side changed zarr.json of a group that the other side deleted"
            }
            ConflictKind::ChunkDoubleUpdate => "both sides changed the same chunks",
            ConflictKind::ChunksUpdatedInDeletedArray => {
                "this side changed chunks of an array that the other side deleted"
            }
            ConflictKind::ChunksUpdatedInUpdatedArray => {
                "the other side changed zarr.json, which has no place for changed chunks"
            }
            ConflictKind::ChunksUpdatedOutsideNewShape => {
                "the other side changed chunks for which the new zarr.json has no place"
            }
            ConflictKind::DeleteOfUpdatedArray => "this side deleted an array that the other side changed",
            ConflictKind::DeleteOfUpdatedGroup => "this side deleted a group that the other side changed",
            ConflictKind::UntrackedNameExists => "the name is untracked here, and a concurrent commit has it",
            ConflictKind::MergedByBoth => "both sides brought the same commits to the branch",
        }
    }
}

/// Change that conflicts with a concurrent commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// Kind of conflict.
    pub kind: ConflictKind,
    /// Path of the node in the change set.
    pub path: String,
    /// Chunks in conflict, if the conflict is about chunks.
    pub coords: Vec<Vec<u32>>,
    /// Members of `zarr.json` in conflict, with a slash between the levels; an empty one stands for
    /// the whole document.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Id of the concurrent commit.
    pub other: ObjectId,
    /// Beginning of the message of the concurrent commit.
    pub message: String,
    /// Part of the change set that is in conflict, for the command that takes it back.
    #[serde(skip)]
    pub own: OwnChange,
}

/// Part of a change set that is in conflict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnChange {
    /// The change at the conflict's path.
    #[default]
    Path,
    /// The document of a new group at the conflict's path, and nothing below.
    NewGroup,
    /// The removal of the group at this path, or the move to this path.
    Removal(String),
}

/// Returns true if all conflicts are about chunks that both sides changed.
pub(crate) fn are_about_chunks(conflicts: &[Conflict]) -> bool {
    conflicts.iter().all(|conflict| conflict.kind == ConflictKind::ChunkDoubleUpdate)
}

/// Chunks of a conflict that the text lists; of more it says where they begin and end.
const LISTED: usize = 10;

impl Conflict {
    /// Returns the chunks and the members in conflict, as clauses that follow others.
    pub(crate) fn parts(&self) -> String {
        let mut parts = match (self.coords.iter().min(), self.coords.iter().max()) {
            (Some(first), Some(last)) if self.coords.len() > LISTED => {
                let count = size::counted(self.coords.len() as u64, "chunk");
                format!("; {count} from {first:?} to {last:?}")
            }
            (Some(_), _) => format!("; chunks {:?}", self.coords),
            (None, _) => String::new(),
        };
        let members = self.members.iter().filter(|member| !member.is_empty());
        let members: Vec<_> = members.map(|member| printable::line(member)).collect();
        if !members.is_empty() {
            parts += &format!("; members {}", members.join(", "));
        }
        parts
    }
}

impl std::fmt::Display for Conflict {
    /// One line, whatever names and messages have in them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.parts();
        write!(f, "{}: {:?}: {}{parts}", printable::line(&self.path), self.kind, self.kind.describe())?;
        write!(f, " (commit {} \"{}\")", self.other, printable::line(&self.message))
    }
}
