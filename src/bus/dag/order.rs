//! Reordering interactions, so that shared subexpressions live shorter.
//!
//! Greedy: of the interactions left, the next is the one that frees most shared values minus those it brings to life.

use openvm_stark_backend::air_builders::symbolic::SymbolicExpressionNode;
use rustc_hash::FxHashMap;

use super::compiler::build_dag;
use crate::bus::{error::BusError, interaction::CountingInteractions, F};

/// The same interactions in an order that keeps fewer shared values alive. Counts do not depend on the order.
pub fn reordered(interactions: &CountingInteractions) -> Result<CountingInteractions, BusError> {
    let list = interactions.interactions();
    let (nodes, operands) = build_dag(list, interactions.columns())?;
    // For each interaction, the operations it needs.
    let needs: Vec<Vec<usize>> = operands
        .iter()
        .map(|operands| {
            let mut seen = FxHashMap::default();
            let mut stack: Vec<usize> = operands.nodes().collect();
            while let Some(node) = stack.pop() {
                if let Some(children) = children(&nodes[node]) {
                    if seen.insert(node, ()).is_none() {
                        stack.extend(children);
                    }
                }
            }
            seen.into_keys().collect()
        })
        .collect();
    let mut uses: FxHashMap<usize, usize> = FxHashMap::default();
    for &node in needs.iter().flatten() {
        *uses.entry(node).or_default() += 1;
    }
    // Only operations that several interactions need live from one to another.
    let shared: Vec<Vec<usize>> = needs
        .iter()
        .map(|needs| {
            let mut shared: Vec<usize> = needs
                .iter()
                .copied()
                .filter(|node| uses[node] > 1)
                .collect();
            shared.sort_unstable();
            shared
        })
        .collect();
    let mut left: Vec<usize> = (0..list.len()).collect();
    let mut alive: FxHashMap<usize, ()> = FxHashMap::default();
    let mut order = Vec::with_capacity(list.len());
    while !left.is_empty() {
        let gain = |interaction: usize| {
            shared[interaction]
                .iter()
                .map(|node| {
                    let dies = i64::from(uses[node] == 1);
                    let born = i64::from(!alive.contains_key(node));
                    dies - born
                })
                .sum::<i64>()
        };
        // The earliest of the best, so that the result does not depend on chance.
        let mut best = 0;
        let mut best_gain = i64::MIN;
        for (position, &interaction) in left.iter().enumerate() {
            let gain = gain(interaction);
            if gain > best_gain {
                (best, best_gain) = (position, gain);
            }
        }
        let interaction = left.remove(best);
        for node in &shared[interaction] {
            let uses = uses.entry(*node).or_default();
            *uses -= 1;
            if *uses == 0 {
                alive.remove(node);
            } else {
                alive.insert(*node, ());
            }
        }
        order.push(interaction);
    }
    Ok(interactions.permuted(&order))
}

/// The operands of an operation; `None` for leaves.
fn children(node: &SymbolicExpressionNode<F>) -> Option<Vec<usize>> {
    match node {
        SymbolicExpressionNode::Add {
            left_idx,
            right_idx,
            ..
        }
        | SymbolicExpressionNode::Sub {
            left_idx,
            right_idx,
            ..
        }
        | SymbolicExpressionNode::Mul {
            left_idx,
            right_idx,
            ..
        } => Some(vec![*left_idx, *right_idx]),
        SymbolicExpressionNode::Neg { idx, .. } => Some(vec![*idx]),
        _ => None,
    }
}
