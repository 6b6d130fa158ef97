//! Values of some bytes that stand for very many: FlexBuffers, MessagePack, YAML and JSON.

/// FlexBuffers value of lists in lists: `breadth` references to one list, and so on for `levels`,
/// the lowest of which has `leaf` one-byte numbers.
pub fn flexbuffer_of_shared_lists(levels: usize, breadth: u32, leaf: u16) -> Vec<u8> {
    const LIST: u8 = 10 << 2;
    const NUMBERS: u8 = 11 << 2;
    let mut bytes = leaf.to_le_bytes().to_vec();
    // Numbers of two bytes have a length of two bytes.
    let mut target = bytes.len();
    bytes.resize(bytes.len() + 2 * usize::from(leaf), 0);
    let mut kind = NUMBERS | 1;
    for _ in 0..levels {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(breadth.to_le_bytes());
        let list = bytes.len();
        for _ in 0..breadth {
            let distance = (bytes.len() - target) as u32;
            bytes.extend(distance.to_le_bytes());
        }
        bytes.extend(std::iter::repeat_n(kind, breadth as usize));
        (target, kind) = (list, LIST | 2);
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let distance = (bytes.len() - target) as u32;
    bytes.extend(distance.to_le_bytes());
    bytes.extend([kind, 4]);
    bytes
}

/// FlexBuffers text of `length` bytes.
pub fn flexbuffer_text(length: u32) -> Vec<u8> {
    const TEXT: u8 = 5 << 2;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(std::iter::repeat_n(b'x', length as usize));
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let distance = bytes.len() as u32 - 4;
    bytes.extend(distance.to_le_bytes());
    bytes.extend([TEXT | 2, 4]);
    bytes
}

/// MessagePack list of `count` values, each of which is `value`.
pub fn message_pack_list(count: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xdd];
    bytes.extend(count.to_be_bytes());
    bytes.extend(value.repeat(count as usize));
    bytes
}

/// MessagePack list that claims to have `count` values, and has none.
pub fn message_pack_claim(count: u32) -> Vec<u8> {
    [&[0xdd], count.to_be_bytes().as_slice()].concat()
}

/// Values of one to three bytes, in MessagePack: null, an empty text, an empty list, an empty map,
/// a list of one.
pub const MESSAGE_PACK: [&[u8]; 5] = [&[0xc0], &[0xa0], &[0x90], &[0x80], &[0x91, 0x01]];

/// YAML of aliases of aliases: `breadth` to the power of `levels` values.
pub fn yaml_of_aliases(levels: usize, breadth: usize) -> String {
    let mut text = format!("a0: &a0 [{}]\n", vec!["x"; breadth].join(", "));
    for n in 1..levels {
        text += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); breadth].join(", "));
    }
    text
}

/// JSON values of few bytes, many of which make a list.
pub const JSON: [&str; 7] = ["0", "\"\"", "[]", "{}", "[0]", "{\"a\":0}", "1e5"];
/// Those of [`JSON`] that take most memory for their bytes: a number, and a map.
pub const LARGEST: [&str; 2] = ["0", "{\"a\":0}"];

/// JSON list of as many `value` as `bytes` have room for.
pub fn json_list(value: &str, bytes: usize) -> String {
    let count = bytes / (value.len() + 1);
    format!("[{}{value}]", format!("{value},").repeat(count.saturating_sub(1)))
}

/// JSON map of as many members as `bytes` have room for, each with `value`.
pub fn json_map(value: &str, bytes: usize) -> String {
    let count = bytes / (value.len() + 10);
    let members: Vec<String> = (0..count).map(|n| format!("\"{n:x}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// JSON of lists in lists, `depth` deep.
pub fn json_nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}
