//! Random changes to a model.

use crate::common::lab::{Model, Node, is_at_or_below};
use crate::common::random::Random;

/// Makes a random change to a model.
pub fn scramble(model: &mut Model, random: &mut Random, allow_moves: bool) {
    let names = ["a", "a b", "a-b", "a.b", "ab", "c", "0", "é", "B"];
    let path = |random: &mut Random| {
        let parts: Vec<&str> = (0..1 + random.below(3)).map(|_| *random.pick(&names)).collect();
        format!("/{}", parts.join("/"))
    };
    let nodes: Vec<Node> = model.nodes.values().cloned().collect();
    let arrays: Vec<&Node> = nodes.iter().filter(|node| node.grid.is_some()).collect();
    let fits = |model: &Model, path: &str, is_array: bool| {
        model.at(path).is_none()
            && !model.nodes.values().any(|node| {
                (is_array && is_at_or_below(&node.path, path))
                    || (node.grid.is_some() && is_at_or_below(path, &node.path))
            })
    };
    match random.below(20) {
        0..=1 => {
            let path = path(random);
            if fits(model, &path, false) {
                model.group(&path);
            }
        }
        2..=4 => {
            let path = path(random);
            let grid: Vec<u32> = (0..random.below(4)).map(|_| 1 + random.below(6) as u32).collect();
            if fits(model, &path, true) {
                model.array(&path, &grid);
            }
        }
        5..=14 if !arrays.is_empty() => {
            let array = random.pick(&arrays);
            for _ in 0..1 + random.below(8) {
                let grid = array.grid.as_ref().unwrap();
                if grid.contains(&0) {
                    continue;
                }
                let coords: Vec<u32> = grid.iter().map(|n| random.below(*n as usize) as u32).collect();
                if random.below(5) == 0 {
                    model.get(&array.path).chunks.remove(&coords);
                } else {
                    let largest = *random.pick(&[20, 400, 3000]);
                    let size = 1 + random.below(largest);
                    let byte = random.below(256) as u8;
                    model.chunk(&array.path, &coords, vec![byte; size]);
                }
            }
        }
        15 if !arrays.is_empty() => {
            let array = random.pick(&arrays);
            let grid: Vec<u32> = array.grid.iter().flatten().map(|_| random.below(8) as u32).collect();
            model.resize(&array.path, &grid);
        }
        16 if !nodes.is_empty() => {
            let path = random.pick(&nodes).path.clone();
            model.delete(&path);
        }
        17 if !arrays.is_empty() => {
            let path = random.pick(&arrays).path.clone();
            let grid = model.get(&path).grid.clone().unwrap();
            model.delete(&path);
            model.array(&path, &grid);
        }
        18..=19 if !nodes.is_empty() && allow_moves => {
            let from = random.pick(&nodes).path.clone();
            let to = path(random);
            let free = model.nodes.values().all(|node| {
                !is_at_or_below(&node.path, &to) && (node.grid.is_none() || !is_at_or_below(&to, &node.path))
            });
            if free && !is_at_or_below(&to, &from) {
                model.rename(&from, &to);
            }
        }
        _ => {}
    }
}
