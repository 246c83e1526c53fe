//! How messages of the service become bytes and are read from them.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{self, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

/// The usual codec, but for one thing: it makes room for a whole message before it writes one. A reply with
/// a few hundred messages is far longer than the buffer that it is written to at first, which would grow by
/// doubling, and be copied each time.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Codec<T, U> {
        Codec(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = WholeEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> WholeEncoder<T> {
        WholeEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::default()
    }
}

#[derive(Debug)]
pub struct WholeEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for WholeEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode_raw(buffer);
        Ok(())
    }
}
