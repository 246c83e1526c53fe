//! Encodes batches without copying them: the pipeline keeps every batch in flight, in case it has to be sent again, and
//! the call encodes from there.

use std::sync::Arc;

use forebay_wire::v1;
use prost::Message as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

pub(super) struct SharedCodec;

pub(super) struct SharedEncoder;

impl Codec for SharedCodec {
    type Encode = Arc<v1::PublishRequest>;
    type Decode = v1::PublishReply;
    type Encoder = SharedEncoder;
    type Decoder = ProstDecoder<v1::PublishReply>;

    fn encoder(&mut self) -> SharedEncoder {
        SharedEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl Encoder for SharedEncoder {
    type Item = Arc<v1::PublishRequest>;
    type Error = Status;

    fn encode(&mut self, request: Self::Item, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(request.encoded_len());
        request.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}
