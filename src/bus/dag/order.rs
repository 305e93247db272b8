//! Reordering interactions, so that shared subexpressions live shorter.
//!
//! Greedy: an interaction is followed by one that uses something alive, of those by the one that brings the fewest new
//! shared values to life, less those that it is the last to use.

use openvm_stark_backend::air_builders::symbolic::SymbolicExpressionNode;

use super::compiler::build_dag;
use crate::bus::{error::BusError, interaction::CountingInteractions, F};

/// The same interactions in an order that keeps fewer shared operations alive at once, or in their own order if the
/// other is not better. Counts do not depend on the order.
pub fn reordered(interactions: &CountingInteractions) -> Result<CountingInteractions, BusError> {
    let list = interactions.interactions();
    let (nodes, operands) = build_dag(list, interactions.columns())?;
    let needs: Vec<Vec<usize>> = operands
        .iter()
        .map(|operands| operations(&nodes, operands.nodes().collect()))
        .collect();
    let mut users = vec![Vec::new(); nodes.len()];
    for (interaction, needs) in needs.iter().enumerate() {
        for &node in needs {
            users[node].push(interaction);
        }
    }
    // Only operations that several interactions need live from one to another.
    let shared: Vec<Vec<usize>> = needs
        .into_iter()
        .map(|mut needs| {
            needs.retain(|&node| users[node].len() > 1);
            needs
        })
        .collect();
    let given: Vec<usize> = (0..list.len()).collect();
    let order = follow_shared(&shared, &users);
    let most_alive = |order: &[usize]| most_alive(order, &shared, &users);
    let better = most_alive(&order) < most_alive(&given);
    Ok(interactions.permuted(if better { &order } else { &given }))
}

/// The greedy order; ties go to the earliest interaction, so that it does not depend on chance.
fn follow_shared(shared: &[Vec<usize>], users: &[Vec<usize>]) -> Vec<usize> {
    let mut uses_left: Vec<usize> = users.iter().map(Vec::len).collect();
    let mut computed = vec![false; users.len()];
    let mut done = vec![false; shared.len()];
    // For each interaction, its shared values that are alive, not yet alive, and waiting for it alone.
    let mut alive = vec![0; shared.len()];
    let mut unborn: Vec<i64> = shared.iter().map(|shared| shared.len() as i64).collect();
    let mut last_use = vec![0; shared.len()];
    let mut left: Vec<usize> = (0..shared.len()).collect();
    let mut order = Vec::with_capacity(shared.len());
    while let Some(next) = left
        .iter()
        .enumerate()
        .filter(|(_, &interaction)| alive[interaction] > 0)
        .min_by_key(|(_, &interaction)| unborn[interaction] - last_use[interaction])
        .map(|(position, _)| position)
        .or((!left.is_empty()).then_some(0))
    {
        let interaction = left.remove(next);
        order.push(interaction);
        done[interaction] = true;
        for &node in &shared[interaction] {
            if !std::mem::replace(&mut computed[node], true) {
                for &user in &users[node] {
                    alive[user] += 1;
                    unborn[user] -= 1;
                }
            }
            uses_left[node] -= 1;
            if uses_left[node] == 1 {
                for &user in users[node].iter().filter(|&&user| !done[user]) {
                    last_use[user] += 1;
                }
            }
        }
    }
    order
}

/// The largest number of shared values alive at once.
fn most_alive(order: &[usize], shared: &[Vec<usize>], users: &[Vec<usize>]) -> usize {
    let mut uses_left: Vec<usize> = users.iter().map(Vec::len).collect();
    let (mut alive, mut most) = (0, 0);
    for &interaction in order {
        let shared = &shared[interaction];
        alive += shared
            .iter()
            .filter(|&&node| uses_left[node] == users[node].len())
            .count();
        most = most.max(alive);
        for &node in shared {
            uses_left[node] -= 1;
            alive -= usize::from(uses_left[node] == 0);
        }
    }
    most
}

/// The operations below some nodes, sorted.
fn operations(nodes: &[SymbolicExpressionNode<F>], mut stack: Vec<usize>) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut visited = rustc_hash::FxHashSet::default();
    while let Some(node) = stack.pop() {
        let Some(children) = children(&nodes[node]) else {
            continue;
        };
        if visited.insert(node) {
            seen.push(node);
            stack.extend(children);
        }
    }
    seen.sort_unstable();
    seen
}

/// The operands of an operation; `None` for leaves.
pub(crate) fn children<T>(node: &SymbolicExpressionNode<T>) -> Option<Vec<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two values, each shared by two interactions that lie crosswise: one at a time is enough.
    #[test]
    fn crossing_interactions_are_put_together() {
        let shared = [vec![0], vec![1], vec![0], vec![1]];
        let users = [vec![0, 2], vec![1, 3]];
        let order = follow_shared(&shared, &users);
        assert_eq!(order, [0, 2, 1, 3]);
        assert_eq!(most_alive(&[0, 1, 2, 3], &shared, &users), 2);
        assert_eq!(most_alive(&order, &shared, &users), 1);
    }
}
