//! The OpenVM extension: config, executor, AIR, chips, periphery.
