// What must hold: a dtype is read back as it is written, and by the names that engines have for it.
#include "ems_context/kv_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::context {
namespace {

using ::testing::HasSubstr;

TEST(KvTensorTest, NamesOfDtypesAndOrders) {
  for (int i = 0; i < 7; ++i) {
    const auto dtype = static_cast<KvDtype>(i);
    EXPECT_EQ(*ParseDtype(NameOf(dtype)), dtype);
    EXPECT_GE(BytesOf(dtype), 1u);
  }
  EXPECT_EQ(*ParseDtype("torch.bfloat16"), KvDtype::kBfloat16);
  EXPECT_EQ(*ParseDtype("Float8_E4M3fn"), KvDtype::kFloat8E4M3);
  EXPECT_EQ(*ParseDtype("half"), KvDtype::kFloat16);
  EXPECT_EQ(ParseDtype("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ToString(ParseDtype("int4").status()), HasSubstr("\"int4\""));
}

}  // namespace
}  // namespace ems::context
