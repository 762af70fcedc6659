#include "ems_model/source/xml_scanner.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

// "<a", "'text'", ">a" joined by blanks, or the code of the error.
std::string Scan(std::string_view xml) {
  XmlScanner scanner(xml);
  std::string out;
  for (;;) {
    const Result<XmlEvent> event = scanner.Next();
    if (!event.ok()) return std::string(CodeName(event.status().code()));
    if (event->kind == XmlEvent::Kind::kDone) return out;
    if (!out.empty()) out += ' ';
    if (event->kind == XmlEvent::Kind::kStart) out += "<" + std::string(event->name);
    if (event->kind == XmlEvent::Kind::kEnd) out += ">" + std::string(event->name);
    if (event->kind == XmlEvent::Kind::kText) out += "'" + event->text + "'";
  }
}

TEST(XmlScannerTest, ElementsTextAndAttributes) {
  EXPECT_EQ(Scan("<?xml version=\"1.0\"?>\n<!-- - --><a x='1' y = \"<\" ></a>"),
            "INVALID_ARGUMENT");
  EXPECT_EQ(Scan("<?xml version=\"1.0\"?>\n<!-- x -->\n<a x='1' y = \">\" >t<b/>u</a >\n<!--z-->"),
            "<a 't' <b >b 'u' >a");
  EXPECT_EQ(Scan("<p:a xmlns:p=\"http://x\"><p:b>1</p:b></p:a>"), "<a <b '1' >b >a");
}

TEST(XmlScannerTest, EntitiesBecomeCharacters) {
  EXPECT_EQ(Scan("<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x4e;&#x20AC;&#x1F600;&#233;</a>"),
            "<a '<>&\"'AN\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9' >a");
  // Decoded once, not twice.
  EXPECT_EQ(Scan("<a>&amp;lt;</a>"), "<a '&lt;' >a");
}

TEST(XmlScannerTest, CharacterDataIsTakenAsItIs) {
  EXPECT_EQ(Scan("<a>x<![CDATA[<b>&amp;]]>y</a>"), "<a 'x' '<b>&amp;' 'y' >a");
  EXPECT_EQ(Scan("<a><![CDATA[]]></a>"), "<a >a");
}

TEST(XmlScannerTest, WhatIsNotWellFormedIsAnError) {
  for (const std::string_view xml : {"",
                                     "  ",
                                     "text",
                                     "<a>",
                                     "<a></b>",
                                     "</a>",
                                     "<a/><b/>",
                                     "<a></a>x",
                                     "x<a/>",
                                     "<a",
                                     "<a x></a>",
                                     "<a x=1></a>",
                                     "<a x='1></a>",
                                     "<a x='1'y='2'/>",
                                     "<>",
                                     "< a/>",
                                     "<a>&lt</a>",
                                     "<a>&nope;</a>",
                                     "<a>&#0;</a>",
                                     "<a>&#xD800;</a>",
                                     "<a>&#x110000;</a>",
                                     "<a>&#;</a>",
                                     "<a>&#x;</a>",
                                     "<a>&#99999999999999999999;</a>",
                                     "<a>&#-1;</a>",
                                     "<a><!-- </a>",
                                     "<a><![CDATA[</a>",
                                     "<![CDATA[x]]><a/>",
                                     "<?xml",
                                     "<a></a",
                                     "<a:></a:>"}) {
    EXPECT_EQ(Scan(xml), "INVALID_ARGUMENT") << xml;
  }
}

TEST(XmlScannerTest, DocumentTypesAreRefusedSoThatNothingExpands) {
  EXPECT_EQ(Scan("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>"), "INVALID_ARGUMENT");
}

TEST(XmlScannerTest, DepthAndNamesAreBounded) {
  std::string open, close;
  for (size_t i = 0; i < XmlScanner::kDepthMax; ++i) open += "<a>", close += "</a>";
  EXPECT_NE(Scan(open + close), "INVALID_ARGUMENT");
  EXPECT_EQ(Scan("<a>" + open + close + "</a>"), "INVALID_ARGUMENT");
  const std::string name(XmlScanner::kNameMax, 'n');
  EXPECT_EQ(Scan("<" + name + "/>"), "<" + name + " >" + name);
  EXPECT_EQ(Scan("<" + name + "n/>"), "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace ems::model
