# cmake -DCOMMAND=PROGRAM;ARG;... -DOUTPUT=FILE -P capture.cmake: writes the output of the
# command to the file. If the command fails or prints nothing, leaves no file and stops the build.
cmake_minimum_required(VERSION 3.21)
list(REMOVE_ITEM COMMAND "")
execute_process(COMMAND ${COMMAND} OUTPUT_VARIABLE text RESULT_VARIABLE status)
list(JOIN COMMAND " " shown)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "'${shown}' failed: ${status}")
elseif(text STREQUAL "")
    message(FATAL_ERROR "'${shown}' printed nothing")
endif()
file(WRITE ${OUTPUT} "${text}")
