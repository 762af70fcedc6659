#pragma once
// Made by tests/ems_context/hash_vectors.py; do not edit.
#include <string_view>
#include <vector>

#include "ems_context/hash_recipes.h"

namespace ems::context::test {

struct VllmVector {
  VllmHash hash;
  std::string_view seed;
  std::string_view none_hash;
  std::vector<std::string_view> plain, extra;
};

inline const std::vector<VllmVector> kVllmVectors = {
    {VllmHash::kSha256Cbor,
     "0",
     "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
     {"a66ef638a539c8a097c6f5211b9b42ddea2edab8d899a057e7419b8bf8f56478",
      "90113d54368602ea959bc2663f1217d6f1e2a880dadbaf6176c4e96389e7c32a"},
     {"aa8e5ae1a87888b3525c3cee3820ca8413c041fa7033e4b143d32959f80dee97",
      "e4c5ad952142e68666213464cca7dfbabab747425b2ba7d0561d265eb064f54f"}},
    {VllmHash::kSha256Cbor,
     "42",
     "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780",
     {"88b7037be787d5b6151bd43ba1b2f564e4d09b5a1a407df428758cc70386a99c",
      "75f474d500e2124003752c674bcd5d97fb42abf2f150ffaf1aa40333fc275b18"},
     {"2bd157f975fa2caa5f4c4d49ffc44359679a9cc0e57ab7c54c21c7bb3863440e",
      "9c35fb455d3fd3aa5482767caba9a71d32d76740c59775a2ff7985cdf6017882"}},
    {VllmHash::kSha256Cbor,
     "",
     "8d33f520a3c4cef80d2453aef81b612bfe1cb44c8b2025630ad38662763f13d3",
     {"4771bd65a2aa758562a177f0076bf2e72557d2b2a999642cf54506a5455d5b0a",
      "af83080934052d3f0432ade889b79a6ca85301f77cc0b7652f36ef9a4128daac"},
     {"85fb76f533f861fef9fff971c941f4fd21b030e7499b7bb8a6d0673eda7659e5",
      "ba4eed27ba569600ed5384ff07b3d9cfa050450de55c24195f220e3d404b8a11"}},
    {VllmHash::kSha256Cbor,
     "a seed of more than twenty-three characters",
     "c3ee0f9ffa1750ead480329a8fdbd4c1b661096faa797107650df5798422248f",
     {"5e081546aaf89104b565fb8a467fab198ac24d707a5386bdf0050bfb0909748a",
      "30330bbd0fc28b49727209936a7ab9244e2f168299adc914d4d50a0b768d6c89"},
     {"696a0562828edffcfcf81139d39ffb92f78b26a625a9410f58c141f8d4e3806b",
      "2d70b6b1773c400063007f14b09247af70391087f7a3a763011357ed09e6d19a"}},
    {VllmHash::kSha256Cbor,
     "S\xc3"
     "\xa4"
     "mling",
     "a4025866285339e699e9034cca6e80b1cc4f8985ea1d3dd86abb05b44d8a792c",
     {"fa60cd18ec9b6f3cd0b1ff44cb2bae761abfef3656bfe0a227b15c2f089e3928",
      "eb74b7cc8e41cac3e65420e80851815ea0c3b59bb0002f34ca87364c453ec27c"},
     {"859b3758e3a781e8ebb983c48e2663837c257b3c0d41e3e5d9af0b47d98cc0bf",
      "3b8f6f5217c45e45103b1eac85d651784531c56ebc520a1c7a88ce69a8a75f7b"}},
    {VllmHash::kXxhashCbor,
     "0",
     "1ebe36576dcb573f26b99533a20aaeca",
     {"5f515234bfd13315a896e2bde410e604", "89440146d67b10aabcdc72f70d7baff8"},
     {"b996e0011bc767e91574c95f33b6650a", "4c5e6d115c0f678e752ee739db76cf70"}},
    {VllmHash::kXxhashCbor,
     "42",
     "a9d2e63407fce1a26c9dc9d7fa2d7caf",
     {"b89682fc6c2aa9bb01985183f8c471fc", "2c4eebb0a9bd1038c159341ef843400d"},
     {"3f02f6f6d8ff016e129b59ff88e8e391", "54121da531d44fedf333c145626271de"}},
    {VllmHash::kXxhashCbor,
     "",
     "902bbcf97174df1ea0a482954fa7b32a",
     {"09fa5d5918b4564ca8f6be787ad046c0", "0add3f46b09c8e41765d924f33921b95"},
     {"e0c4be7a589fe0c26d2171f8840ba1c5", "fe88d6c1f4cf5ea90ebce419ed2dc8e9"}},
    {VllmHash::kXxhashCbor,
     "a seed of more than twenty-three characters",
     "7be00633bb7f0b3f06a4652afa208e12",
     {"e43437d945a1912f361dd138b6d1927b", "f5675b06c38d866c8c595a5070ebead5"},
     {"8bf4ba64cbb2417fcf5834bba01c4a25", "69321962b0e7e1047bb16fac0807bd64"}},
    {VllmHash::kXxhashCbor,
     "S\xc3"
     "\xa4"
     "mling",
     "f43f0af4887f5baa20387a3e55d2fa15",
     {"4c8608fcc0540768eae964b211cc9382", "aa70924c9f1f46830cdd7e94a8acd3fc"},
     {"d8f7f6c6d0937609288a9caea18b7543", "b65e70f3af2b89622830494a307830fd"}},
};

inline const std::vector<std::string_view> kSglang1 = {
    "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119",
    "553d2ac6e1561dc765dbbd63e06f9ab29bcb4a3ba0ad3f2066ce64f6440909bb",
    "9552492833e54edfa6bbb379ab4a828c0eda16e111da0f75ade2477d6161b79d"};
inline const std::vector<std::string_view> kSglang16 = {
    "f04aa5b08641fc70be01627f006e05fb807ab2386eeb121206968945f6af15e6",
    "31c24d68b1b0ef88709fb74dabd16bd14530816b7577b85908d7a7080a605975"};
inline const std::vector<std::string_view> kSglang20 = {
    "3ce764f9892397c20f60202f64f29e948586b08e848dff2b7dd54a818a545863",
    "a080ff78298369d693c5257dd99144440ce6ffe1c053b78776178cbea5d4514f"};

}  // namespace ems::context::test
