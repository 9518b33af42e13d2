//! Tests of the store from outside, on simulated devices and on files.

mod basics;
mod damage;
mod model;
mod support;
mod threads;
