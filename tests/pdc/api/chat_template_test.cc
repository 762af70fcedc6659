// What must hold: a turn and its answer begin the next turn's prompt, and nobody can write a role.
#include "pdc/api/chat_template.h"

#include <gtest/gtest.h>

namespace ems::pdc::api {
namespace {

TEST(ChatTemplateTest, IsWhatItsHeaderSays) {
  EXPECT_EQ(ChatPrompt({{"system", "be brief"}, {"user", "hi"}}),
            "\xFDsystem\xFE"
            "be brief\xFF\xFDuser\xFEhi\xFF\xFD"
            "assistant\xFE");
}

TEST(ChatTemplateTest, ConversationsThatDifferGivePromptsThatDiffer) {
  EXPECT_NE(ChatPrompt({{"user", "a"}, {"assistant", "b"}}), ChatPrompt({{"user", "aassistantb"}}));
  EXPECT_NE(ChatPrompt({{"user", "a"}, {"user", ""}}), ChatPrompt({{"user", "a"}}));
  EXPECT_NE(ChatPrompt({{"system", "a"}}), ChatPrompt({{"user", "a"}}));
}

}  // namespace
}  // namespace ems::pdc::api
