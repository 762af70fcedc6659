// What must hold: names read as they are written, and nothing else is a name.
#include "ems_model/model_name.h"

#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::model {
namespace {

TEST(ModelNameTest, ReadsWhatItWrites) {
  for (const char* const text : {"qwen/7b@v1", "qwen/7b", "a@2024.01.02-x_y"}) {
    const Result<ModelName> name = ModelName::Parse(text);
    ASSERT_TRUE(name.ok()) << text;
    EXPECT_EQ(name->Text(), text);
  }
  v1::ModelRef ref;
  ToProto({.model = "a/b", .version = "c"}, &ref);
  EXPECT_EQ(ref.model(), "a/b");
  EXPECT_EQ(ref.version(), "c");
  EXPECT_EQ(ref.id(), 0U);
}

TEST(ModelNameTest, RefusesTheRest) {
  for (const char* const text : {"", "@v1", "a@", "a@b@c", "a@b/c", "/a@b", "a b@c", "a//b"})
    EXPECT_EQ(ModelName::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
}

}  // namespace
}  // namespace ems::model
