//! Checksum of superblocks and object headers: Bob Jenkins' lookup3.

/// Returns `hashlittle(bytes, initial)` of lookup3.
pub(in super::super) fn lookup3(bytes: &[u8], initial: u32) -> u32 {
    // The algorithm takes the length modulo 2^32.
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(initial);
    let mut state = [start; 3];
    let mut rest = bytes;
    while rest.len() > 12
        && let Some((block, tail)) = rest.split_first_chunk::<12>()
    {
        state = mix(add(state, *block));
        rest = tail;
    }
    if !rest.is_empty() {
        let mut last = [0; 12];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        state = finish(add(state, last));
    }
    let [_, _, sum] = state;
    sum
}

fn add([a, b, c]: [u32; 3], block: [u8; 12]) -> [u32; 3] {
    let [p, q, r, s, t, u, v, w, x, y, z, last] = block;
    [
        a.wrapping_add(u32::from_le_bytes([p, q, r, s])),
        b.wrapping_add(u32::from_le_bytes([t, u, v, w])),
        c.wrapping_add(u32::from_le_bytes([x, y, z, last])),
    ]
}

fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    for bits in [[4, 6, 8], [16, 19, 4]] {
        let [x, y, z] = bits;
        a = a.wrapping_sub(c) ^ c.rotate_left(x);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(y);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(z);
        b = b.wrapping_add(a);
    }
    [a, b, c]
}

fn finish([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    c = (c ^ b).wrapping_sub(b.rotate_left(24));
    [a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums_are_met() {
        // From driver5 of lookup3.c.
        for (text, sum) in [("", 0xdead_beef_u32), ("Four score and seven years ago", 0x1777_0551)] {
            assert_eq!(lookup3(text.as_bytes(), 0), sum, "{text}");
        }
    }
}
