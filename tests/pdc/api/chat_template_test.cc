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

TEST(ChatTemplateTest, ATurnAndItsAnswerBeginTheNextTurn) {
  std::vector<ChatMessage> messages = {{"system", "be brief"}};
  std::string before;
  for (const std::string turn : {"one", "", "three \xC3\xA4"}) {
    messages.push_back({"user", turn});
    const std::string prompt = ChatPrompt(messages);
    EXPECT_TRUE(prompt.starts_with(before));
    const std::string answer = "answer to " + turn;
    messages.push_back({"assistant", answer});
    before = prompt + answer + kEndOfTurnByte;
  }
}

TEST(ChatTemplateTest, ConversationsThatDifferGivePromptsThatDiffer) {
  EXPECT_NE(ChatPrompt({{"user", "a"}, {"assistant", "b"}}), ChatPrompt({{"user", "aassistantb"}}));
  EXPECT_NE(ChatPrompt({{"user", "a"}, {"user", ""}}), ChatPrompt({{"user", "a"}}));
  EXPECT_NE(ChatPrompt({{"system", "a"}}), ChatPrompt({{"user", "a"}}));
}

}  // namespace
}  // namespace ems::pdc::api
