//! Images share pages and differ where they were written.

use super::*;

#[test]
fn writes_across_pages_read_back_and_leave_the_clone_alone() {
    let original = Image::filled(3 * 4096, 9);
    let mut image = original.clone();
    let bytes: Vec<u8> = (0..6000u32).map(|i| (i % 251) as u8).collect();
    image.write(2000, &bytes);
    let mut back = vec![0; 6000];
    image.read(2000, &mut back);
    assert_eq!(back, bytes);
    assert!(original.to_vec().iter().all(|byte| *byte == 9));
    assert_ne!(image, original);
    assert_eq!(image.to_vec()[..2000], [9; 2000]);
}

#[test]
fn equal_content_has_an_equal_hash_and_moved_content_has_not() {
    let mut one = Image::filled(8192, 0);
    let mut two = Image::filled(8192, 0);
    let empty = one.hash(512);
    one.write(512, &[1; 512]);
    two.write(1024, &[1; 512]);
    assert_ne!(one.hash(512), two.hash(512), "the place counts");
    two.write(1024, &[0; 512]);
    two.write(512, &[1; 512]);
    assert_eq!(one.hash(512), two.hash(512));
    one.flip(600, 3);
    assert_ne!(one.hash(512), two.hash(512));
    one.write(512, &[0; 512]);
    assert_eq!(one.hash(512), empty);
}

#[test]
fn a_recycled_image_of_another_size_is_fitted() {
    let mut rng = Rng::from_seed(1);
    let old = Image::filled(4096, 5);
    let fitted = Initial::Recycled(old).image(8192, &mut rng).to_vec();
    assert_eq!(fitted.len(), 8192);
    assert_eq!((fitted[4095], fitted[4096]), (5, 0));
    let random = Initial::Random.image(4096, &mut rng).to_vec();
    assert!(random.iter().any(|byte| *byte != random[0]));
}
