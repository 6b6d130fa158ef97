//! Contents of an HDF5 file: plain data.

/// Contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileModel {
    /// Groups: the root, which has no name, and the others, each after its parent.
    pub groups: Vec<Group>,
    /// Datasets, in creation order within their groups.
    pub datasets: Vec<Dataset>,
}

/// Group without its members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Name of the link; empty for the root.
    pub name: String,
    /// Index of the parent in [`FileModel::groups`]; of no meaning for the root.
    pub parent: usize,
    /// Attributes, in creation order.
    pub attributes: Vec<Attribute>,
}

impl FileModel {
    /// Creates the model of a file with one group.
    pub fn flat(attributes: Vec<Attribute>, datasets: Vec<Dataset>) -> Self {
        FileModel { groups: vec![Group { attributes, ..Group::default() }], datasets }
    }
}

impl Default for FileModel {
    fn default() -> Self {
        FileModel::flat(Vec::new(), Vec::new())
    }
}

/// Dataset without its data.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Name of the link: not empty, without `/` and NUL.
    pub name: String,
    /// Index of its group in [`FileModel::groups`].
    pub group: usize,
    /// Type of the elements: a number or a fixed string.
    pub data_type: DataType,
    /// Size of each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// True if the first dimension has no maximal size; not for [`Layout::Contiguous`].
    pub unlimited: bool,
    /// Fill value: one element, in the byte order of `data_type`. None means the default of the
    /// format, as for dimensions without a variable.
    pub fill: Option<Vec<u8>>,
    /// Storage of the data.
    pub layout: Layout,
    /// Attributes, in creation order.
    pub attributes: Vec<Attribute>,
}

/// Storage of the data of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// No data: every element is the fill value.
    Absent,
    /// One run of elements in row-major order.
    Contiguous,
    /// Chunks of this shape, all of the same length: edge chunks are whole. One size, positive, for
    /// each dimension.
    Chunked(Vec<u32>),
}

/// Type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// Little-endian integer.
    Int {
        /// Length in bytes: 1, 2, 4 or 8.
        size: u8,
        /// True for two's complement.
        signed: bool,
    },
    /// Little-endian IEEE 754 binary32.
    Float32,
    /// Little-endian IEEE 754 binary64.
    Float64,
    /// Big-endian IEEE 754 binary32: the type of dimensions without a variable.
    BigEndianFloat32,
    /// String of a fixed length, filled with NUL.
    FixedString {
        /// Length in bytes: positive.
        len: u32,
        /// True if it is declared as UTF-8, not as ASCII.
        utf8: bool,
    },
    /// Address of the header of an object. Only the writer uses it, for [`Value::References`].
    ObjectReference,
    /// Object reference and a number, of 16 bytes. Only the writer uses it, for [`Value::Uses`].
    Use,
    /// List of object references in the heap. Only the writer uses it, for [`Value::References`].
    ReferenceList,
    /// UTF-8 string of any length in the heap. Only the writer uses it, for [`Value::Text`] and
    /// [`Value::Texts`].
    Text,
}

/// Attribute of a dataset or of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Name: not empty, without NUL.
    pub name: String,
    /// Value.
    pub value: Value,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Scalar text: a fixed string, of more than 60,000 bytes a string in the heap. The empty text
    /// has a null dataspace.
    Text(String),
    /// Scalar fixed ASCII string of exactly these bytes: `CLASS` has its NUL.
    FixedBytes(Vec<u8>),
    /// Numbers or fixed strings.
    Numbers {
        /// Type of each.
        data_type: DataType,
        /// The elements, in the byte order of `data_type`.
        bytes: Vec<u8>,
        /// Number of elements of a list; none for a scalar. An empty list has a null dataspace.
        count: Option<u64>,
    },
    /// List of texts in the heap.
    Texts(Vec<String>),
    /// List of references to the datasets with these indices in [`FileModel::datasets`], each with
    /// a position: `REFERENCE_LIST`.
    Uses(Vec<(usize, u32)>),
    /// List that has, for each entry, a list of one reference to the dataset with this index in
    /// [`FileModel::datasets`]: `DIMENSION_LIST`.
    References(Vec<usize>),
}
