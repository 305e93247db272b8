//! Compile time and interpretation throughput of the bus programs, on the APCs of the shipped guest.
//!
//! Builds the APCs once (about a minute), or takes them from the artifacts.

use std::sync::Arc;

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use openvm_apc::{
    apc::{ApcSettings, Autoprecompile, VmBuses},
    bus::{dag, BusKernel, BusProgram, Histograms, OutOfTable, TraceView, F},
    pipeline::{ArtifactStore, Guest, GuestInput, Pipeline, Silent},
    vm::SharedApc,
};
use p3_field::PrimeCharacteristicRing;

const ROWS: usize = 64;

fn apcs() -> (Vec<Autoprecompile>, VmBuses) {
    let pipeline = Pipeline::new(
        Guest::find("guest-keccak").expect("it is shipped"),
        ArtifactStore::open(None).expect("a cache directory"),
        Arc::new(Silent),
    );
    let settings = ApcSettings {
        autoprecompiles: 10,
        ..Default::default()
    };
    let selected = pipeline
        .select_apcs(&settings, &GuestInput::u32(10))
        .expect("APCs of the shipped guest");
    (selected.apcs, selected.buses)
}

fn bench(criterion: &mut Criterion) {
    let (apcs, buses) = apcs();
    for apc in [&apcs[0], &apcs[1]] {
        let shared = SharedApc::new(apc.clone().into(), &buses).expect("a built APC");
        let interactions = shared.interactions();
        // Bytes: most lookups hit their tables, and those that do not are dropped.
        let values: Vec<F> = (0..apc.width() * ROWS)
            .map(|index| F::from_u32((index as u32).wrapping_mul(2654435761) >> 24))
            .collect();
        let trace = TraceView::new(&values, apc.width(), ROWS);
        let mut programs: Vec<(String, BusProgram)> = BusKernel::ALL
            .into_iter()
            .map(|kernel| {
                criterion.bench_function(&format!("compile/{kernel}/{}", apc.name), |bencher| {
                    bencher.iter(|| kernel.compile(interactions));
                });
                let program = kernel.compile(interactions).expect("it compiles");
                (kernel.to_string(), (*program).clone())
            })
            .collect();
        let early = dag::Schedule {
            dispatch: dag::Dispatch::Early,
            shared_columns: dag::SharedColumns::ReadAgain,
        };
        let early = dag::Program::compile(interactions, early).expect("it compiles");
        programs.push(("dag-early".to_string(), BusProgram::Dag(early)));
        let mut group = criterion.benchmark_group(format!("interpret/{}", apc.name));
        group.throughput(Throughput::Elements(ROWS as u64));
        for (name, program) in &programs {
            group.bench_function(name, |bencher| {
                let mut histograms = Histograms::zeros(&buses.tables);
                bencher.iter(|| program.replay(trace, ROWS, &mut histograms, OutOfTable::Drop));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
