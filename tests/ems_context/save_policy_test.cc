#include "ems_context/save_policy.h"

#include <gtest/gtest.h>

namespace ems::context {
namespace {

TEST(SavePolicyTest, SaysWhatEachPhaseIsWorth) {
  const auto saves = [](SavePolicy policy) {
    return std::string(ShouldSave(policy, SavePhase::kPrefill) ? "p" : "-") +
           (ShouldSave(policy, SavePhase::kDecode) ? "d" : "-") +
           (ShouldSave(policy, SavePhase::kFinal) ? "f" : "-");
  };
  EXPECT_EQ(saves(SavePolicy::kPrefillOnly), "p--");
  EXPECT_EQ(saves(SavePolicy::kAll), "pdf");
  EXPECT_EQ(saves(SavePolicy::kFinalResponse), "p-f");
}

TEST(SavePolicyTest, NamesAreReadBack) {
  for (const auto policy : {SavePolicy::kPrefillOnly, SavePolicy::kAll, SavePolicy::kFinalResponse})
    EXPECT_EQ(*ParseSavePolicy(NameOf(policy)), policy);
  EXPECT_EQ(ParseSavePolicy("some").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::context
